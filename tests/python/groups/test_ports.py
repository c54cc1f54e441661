"""``Q7X2_PORT_RANGE``: every port that q7x2 opens lies inside, and a wrong range is an error."""

from __future__ import annotations

import pathlib
import random
import re
import socket

import harness
import pytest

pytestmark = pytest.mark.beyond("gloo", "reads no such variable")

# Ranks that count as ranks of two hosts, so that UCX and heartbeats need ports. Some threads have
# files of their own.
JOB = r"""
    import contextlib, os, pathlib, re
    import torch, torch.distributed as dist

    rank = int(os.environ["RANK"])
    os.environ["Q7X2_HOST_ID"] = str(rank % 2)
    dist.init_process_group("q7x2")
    dist.all_reduce(torch.ones(100_000))
    dist.all_reduce(torch.ones(10), group=dist.new_group())
    sockets = set()
    for file in pathlib.Path("/proc/self/task").glob("*/fd/*"):
        with contextlib.suppress(OSError):
            sockets |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(file)))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            words = line.split()
            port, is_listening = int(words[1].rpartition(":")[2], 16), words[3] == "0A"
            if is_listening and words[9] in sockets and port != int(os.environ["MASTER_PORT"]):
                print("listens", port)
    dist.barrier()
    dist.destroy_process_group()
"""


def free_range(count: int) -> int:
    """The first of ``count`` ports at which nobody listens."""
    for _ in range(100):
        first = random.randrange(21_000, 31_000 - count)
        sockets = [socket.socket() for _ in range(count)]
        try:
            for i, each in enumerate(sockets):
                each.bind(("", first + i))
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
        return first
    raise AssertionError("no free ports")


def test_all_ports_but_the_stores_lie_in_the_range(tmp_path: pathlib.Path) -> None:
    first = free_range(100)
    env = {"Q7X2_PORT_RANGE": f"{first}-{first + 99}"}
    for result in harness.run_script(JOB, 4, tmp_path, 120, env=env):
        ports = {int(port) for port in re.findall(r"listens (\d+)", result.stdout)}
        assert len(ports) >= 2, result.describe()  # for data, and for heartbeats
        assert all(first <= port < first + 100 for port in ports), result.describe()


GROUP = """
    import sys, torch.distributed as dist
    try:
        dist.init_process_group("q7x2", store=dist.HashStore(), rank=0, world_size=1)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("value", ["20000", "20099-20000", "0-10", "a-b", "20000-70000"])
def test_a_wrong_range_is_an_error(value: str, tmp_path: pathlib.Path) -> None:
    (result,) = harness.run_script(GROUP, 1, tmp_path, 60, env={"Q7X2_PORT_RANGE": value})
    assert "ValueError" in result.stdout, result.describe()
    assert f"Q7X2_PORT_RANGE={value}: expected two ports" in result.stdout, result.describe()


def test_a_range_that_is_used_up_is_an_error(tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        env = {"Q7X2_PORT_RANGE": f"{port}-{port}"}
        (result,) = harness.run_script(GROUP, 1, tmp_path, 60, env=env)
    assert f"Q7X2_PORT_RANGE={port}-{port} has no free port" in result.stdout, result.describe()
    assert "DistBackendError" in result.stdout, result.describe()
