"""``q7x2.describe`` and ``Q7X2_LOG``: what a group is made of."""

from __future__ import annotations

import os
import pathlib
import re

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist


@pytest.mark.ranks(3)
def test_a_group_of_one_host() -> None:
    dist.all_reduce(torch.ones(100))
    facts = q7x2.describe()
    rank = dist.get_rank()
    assert (facts.rank, facts.world_size) == (rank, 3)
    (host,) = facts.hosts
    assert host["ranks"] == [0, 1, 2]
    assert host["pids"][rank] == os.getpid()
    assert [peer["rank"] for peer in facts.peers] == [r for r in range(3) if r != rank]
    for peer in facts.peers:
        assert peer["path"] == "shared memory"
        assert peer["memory_refusal"] == ""
        assert peer["transports"]
    reduce = next(k for k in facts.algorithms if k["collective"] == "all_reduce")
    assert reduce["bytes"] >= 400
    assert reduce["calls"] >= 1
    assert reduce["algorithms"]
    assert facts.flight_recorder == 2000
    assert facts.timeout == 30
    assert facts.error is None
    text = str(facts)
    assert f"rank {rank} of 3, on 1 host" in text
    assert "shared memory" in text
    assert "all_reduce up to" in text


@pytest.mark.ranks(2, fresh=True, init="none")
def test_ranks_of_different_hosts(shared: str) -> None:
    os.environ["Q7X2_HOST_ID"] = str(harness.current_rank())
    dist.init_process_group(
        "q7x2", init_method=f"file://{shared}/store", rank=harness.current_rank(), world_size=2
    )
    facts = q7x2.describe()
    assert [host["ranks"] for host in facts.hosts] == [[0], [1]]
    (peer,) = facts.peers
    assert peer["path"] == "UCX"
    assert not peer["same_host"]
    assert peer["memory_refusal"] == ""
    dist.destroy_process_group()


@pytest.mark.ranks(1, backend="gloo")
def test_another_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="describe needs a group with a q7x2 backend"):
        q7x2.describe()


def reduce_for_ever() -> None:
    while True:
        dist.all_reduce(torch.ones(1))


@pytest.mark.ranks(2, fresh=True)
def test_a_failed_group_says_why() -> None:
    if dist.get_rank() == 0:
        dist.group.WORLD.abort()
    with pytest.raises(dist.DistBackendError):
        reduce_for_ever()
    facts = q7x2.describe()
    assert facts.error is not None
    assert "aborted" in facts.error
    assert "failed: " in str(facts)


JOB = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("q7x2")
    dist.all_reduce(torch.ones(1000))
    dist.barrier()
    dist.destroy_process_group()
"""


def logs(directory: pathlib.Path, **env: str) -> list[list[str]]:
    """What each rank of a job says."""
    results = harness.run_script(JOB, 2, directory, env=env)
    return [
        [line for line in result.stderr.splitlines() if line.startswith("q7x2: ")]
        for result in results
    ]


def test_by_default_the_log_is_silent(tmp_path: pathlib.Path) -> None:
    assert logs(tmp_path) == [[], []]


def test_info_is_said_by_one_rank(tmp_path: pathlib.Path) -> None:
    first, second = logs(tmp_path, Q7X2_LOG="info")
    text = "\n".join(first)
    assert re.search(r"info: group '\w+': rank 0 of 2 ranks on 1 host: .* \(ranks 0-1\)", text)
    assert re.search(r"info: all_reduce up to \d+ bytes: \w+", text)
    assert second == []


def test_debug_is_said_by_all(tmp_path: pathlib.Path) -> None:
    for rank, lines in enumerate(logs(tmp_path, Q7X2_LOG="debug")):
        text = "\n".join(lines)
        assert f"rank {rank} of 2 ranks on 1 host" in text
        assert f"rank {rank} talks to rank {1 - rank}" in text
        assert "all_reduce up to" in text


def test_memory_that_is_not_shared_is_said_with_its_reason(tmp_path: pathlib.Path) -> None:
    source = """
        import q7x2
        import torch
        import torch.distributed as dist

        dist.init_process_group("q7x2")
        dist.all_reduce(torch.ones(1000))
        print(q7x2.describe())
        dist.destroy_process_group()
    """
    results = harness.run_script(source, 3, tmp_path, env={"UCX_TLS": "tcp", "Q7X2_LOG": "info"})
    first = results[0]
    said = [line for line in first.stderr.splitlines() if "shares no memory" in line]
    assert len(said) == 1, first.stderr
    assert "rank 0 shares no memory with ranks 1-2, and uses UCX's transports: " in said[0]
    assert "no shared memory: " in first.stdout
    for other in results[1:]:
        assert "shares no memory" not in other.stderr
