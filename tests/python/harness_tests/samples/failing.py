"""Tests that fail; ``test_explanations.py`` reads what pytest then prints."""

from __future__ import annotations

import contextlib
import random
import time

import harness
import pytest
import seeds
import torch
import torch.distributed as dist


def fail_on_one_rank() -> None:
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1000))
    print(f"rank {rank} begins", flush=True)
    if rank == 1:
        raise ValueError("the fault")
    time.sleep(100)


@pytest.mark.ranks(2)
def test_one_rank_raises_and_one_hangs() -> None:
    fail_on_one_rank()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", range(30))
def test_many(number: int) -> None:
    dist.all_reduce(torch.ones(1000))
    raise ValueError(f"fault {number}")


def test_script(tmp_path: object) -> None:
    assert isinstance(tmp_path, type(harness.ROOT))
    harness.run_script("raise OSError('the script')", 2, tmp_path)


def test_own_pool(new_pool: type[harness.RankPool], backend: str) -> None:
    pool = new_pool(2)
    pool.start(fail_on_one_rank, harness.GroupSpec(backend))
    log = pool.directory / "rank0.log"
    harness.wait_until(lambda: log.exists() and "begins" in log.read_text())
    assert backend == "", "the test fails while its ranks run"


@pytest.mark.ranks(2)
def test_seed_on_ranks() -> None:
    chosen = random.Random(seeds.seed()).random()
    raise AssertionError(f"chosen {chosen}")


@pytest.mark.timeout(3)
def test_never_stops() -> None:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(100)


# Another worker runs it: the one above is ended. It needs no ranks, so that is cheap.
@pytest.mark.timeout(3)
def test_never_ends() -> None:
    time.sleep(100)
