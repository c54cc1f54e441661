"""Barriers hold everybody; a monitored barrier names the ranks that are absent."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist
from values import FEW, WORLDS, Signals, meet


@pytest.mark.ranks(*WORLDS)
def test_barrier_holds_everybody(world_size: int) -> None:
    signals = Signals()
    for late in range(world_size):
        if dist.get_rank() == late:
            time.sleep(0.1)
            signals.give(f"rank {late} comes")
        dist.barrier()
        assert signals.is_given(f"rank {late} comes")


@pytest.mark.ranks(*FEW)
def test_barrier_async() -> None:
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.is_completed()


@pytest.mark.ranks(*WORLDS)
def test_monitored_barrier(backend: str) -> None:
    """Rank 0 leaves when all have come. Who came last says so in the store before it comes."""
    store = dist.distributed_c10d._get_default_store()
    last = dist.get_world_size() - 1
    for turn, wait_all_ranks in enumerate((False, True)):
        if dist.get_rank() == last:
            store.set(f"{backend}, {last}: turn {turn}", "1")
        _monitored_barrier(backend)(wait_all_ranks=wait_all_ranks)
        assert store.check([f"{backend}, {last}: turn {turn}"])


@pytest.mark.ranks(3, fresh=True)
def test_monitored_barrier_names_the_absent(backend: str) -> None:
    from datetime import timedelta

    if dist.get_rank() == 2:
        return meet()
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"(?i)rank 2"):
            _monitored_barrier(backend)(timeout=timedelta(seconds=1))
    else:
        with pytest.raises(RuntimeError):
            _monitored_barrier(backend)(timeout=timedelta(seconds=1))
    return meet()


@pytest.mark.ranks(4, fresh=True)
def test_monitored_barrier_names_all_absent(backend: str) -> None:
    from datetime import timedelta

    if dist.get_rank() in (1, 3):
        return meet()
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"(?i)ranks? 1, 3"):
            _monitored_barrier(backend)(timeout=timedelta(seconds=1), wait_all_ranks=True)
    else:
        with pytest.raises(RuntimeError):
            _monitored_barrier(backend)(timeout=timedelta(seconds=1), wait_all_ranks=True)
    return meet()


def _monitored_barrier(backend: str):
    if backend == "gloo":
        return dist.monitored_barrier
    import q7x2

    return q7x2.monitored_barrier
