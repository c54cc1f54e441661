"""Groups whose ranks UCX_NET_DEVICES leaves without a network."""

from __future__ import annotations

import pathlib
import re

import harness
import pytest

pytestmark = pytest.mark.beyond("gloo", "reads no variable of UCX")

# Rank 1 has a wrong UCX_NET_DEVICES. Its host is another one if the first argument says so.
JOB = """
    import os, sys
    import torch, torch.distributed as dist

    rank = int(os.environ["RANK"])
    if sys.argv[1] == "hosts":
        os.environ["Q7X2_HOST_ID"] = str(rank)
    if rank == 1:
        os.environ["UCX_NET_DEVICES"] = "nothing0,nothing1:1"
    try:
        dist.init_process_group("q7x2")
        x = torch.ones(10)
        dist.all_reduce(x)
        print("sum", x[0].item())
    except dist.DistBackendError as error:
        print(error)
"""


def test_the_variable_and_the_interfaces_are_named(tmp_path: pathlib.Path) -> None:
    results = harness.run_script(JOB, 2, tmp_path, 60, args=["hosts"])
    for result in results:
        assert re.search(r"rank 1 \(pid \d+ on [^)]*\) has no network", result.stdout), (
            result.describe()
        )
        assert "UCX_NET_DEVICES" in result.stdout, result.describe()
        assert "/dev/shm" not in result.stdout, result.describe()
    assert re.search(
        r"UCX_NET_DEVICES=nothing0,nothing1:1 names no interface that UCX can use "
        r"\((here are \w+|no interface is up here)",
        results[1].stdout,
    ), results[1].describe()


def test_ranks_that_share_memory_need_no_network(tmp_path: pathlib.Path) -> None:
    for result in harness.run_script(JOB, 2, tmp_path, 60, args=["one host"]):
        assert result.stdout == "sum 2.0\n", result.describe()


WITHOUT_MEMORY = """
    import os
    import torch.distributed as dist

    os.environ["UCX_TLS"] = "tcp"
    os.environ["UCX_NET_DEVICES"] = "nothing0"
    try:
        dist.init_process_group("q7x2", store=dist.HashStore(), rank=0, world_size=1)
    except dist.DistBackendError as error:
        print(error)
"""


def test_a_ucx_that_has_nothing_left_names_the_variable(tmp_path: pathlib.Path) -> None:
    (result,) = harness.run_script(WITHOUT_MEMORY, 1, tmp_path, 60)
    assert "UCX_NET_DEVICES=nothing0 names no interface" in result.stdout, result.describe()
    assert "UCX_TLS=tcp" in result.stdout, result.describe()
