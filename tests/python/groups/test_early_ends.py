"""Ranks that leave early, disagree about a call that is complete, or cannot make their group.

The others hear of it at once: no group's timeout ends before the test's deadline.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from datetime import timedelta

import harness
import pytest
import torch
import torch.distributed as dist
from deadlines import NEVER
from process_state import wait_until_asleep

OTHER_VICTIM = pytest.mark.nightly("like rank 1: the quick level has one leader and one follower")

# --- a rank that leaves --------------------------------------------------------------------------


@pytest.mark.beyond("gloo", "waits for the timeout")
@pytest.mark.ranks(4, fresh=True, timeout=NEVER)
def test_a_rank_that_leaves_ends_only_what_needs_it() -> None:
    """Messages between the others arrive, before and after collectives that fail without it."""
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    if rank == 3:
        dist.destroy_process_group()
        return
    for round_ in range(100):
        received = torch.zeros(4)
        message = dist.irecv(received, (rank - 1) % 3)
        with pytest.raises(dist.DistBackendError, match=r"rank 3 .*has left the group"):
            dist.all_reduce(torch.ones(1 << (round_ % 20)))
        dist.send(torch.full((4,), float(rank + round_)), (rank + 1) % 3)
        assert message is not None
        message.wait()
        assert received.tolist() == [(rank - 1) % 3 + round_] * 4
    with pytest.raises(dist.DistBackendError, match=r"rank 3 .*has left the group"):
        dist.recv(torch.zeros(4), 3)


@pytest.mark.beyond("gloo", "waits for the timeout")
@pytest.mark.ranks(4, fresh=True, timeout=NEVER)
def test_a_rank_that_cannot_go_on_without_another_one_leaves_too() -> None:
    """Rank 2 waits for rank 1, which waits for rank 0, which needs the rank that has left."""
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    if rank < 3:
        before = (rank - 1) % 4
        with pytest.raises(dist.DistBackendError, match=rf"rank {before} .*has left the group"):
            dist.recv(torch.zeros(4), before)
    dist.destroy_process_group()


@pytest.mark.ranks(3, fresh=True, timeout=NEVER)
def test_collectives_that_a_rank_has_begun_outlive_it() -> None:
    """Rank 0 sends the results and leaves; the others still get them."""
    works = []
    tensors = [torch.full((1 << 16,), float(dist.get_rank() + i)) for i in range(20)]
    for tensor in tensors:
        works.append(dist.broadcast(tensor, 0, async_op=True))
    for work in works:
        assert work is not None
        work.wait()
    if dist.get_rank() == 0:
        dist.destroy_process_group()
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full((1 << 16,), float(i)))


# --- both signatures -----------------------------------------------------------------------------


@pytest.mark.beyond("gloo", "does not notice")
@pytest.mark.ranks(2, 3, fresh=True, timeout=NEVER)
def test_a_disagreement_about_a_complete_call_shows_both_calls() -> None:
    """Rank 0 has all that its broadcast needs at once, and another root sends to it."""
    root = min(dist.get_rank(), 1)
    size = 10 + root

    def call() -> None:
        dist.broadcast(torch.ones(size), root)
        while True:
            dist.barrier()

    both = r"(?s)disagree.*\b40 bytes.*\b44 bytes|disagree.*\b44 bytes.*\b40 bytes"
    with pytest.raises(dist.DistBackendError, match=both):
        call()


# --- a rank that cannot make its group -----------------------------------------------------------

CANNOT = """
    import os, pathlib, sys, time, torch.distributed as dist
    from datetime import timedelta
    rank, victim = int(os.environ["RANK"]), int(sys.argv[2])
    has_raised = pathlib.Path(sys.argv[3] + ".raised")
    store = dist.FileStore(sys.argv[3], 3)
    if rank == victim:
        os.environ["UCX_TLS"] = "nonsense"
    while rank != victim and not has_raised.exists():
        time.sleep(0.01)
    try:
        dist.init_process_group(
            sys.argv[1], store=store, rank=rank, world_size=3, timeout=timedelta(seconds=600)
        )
    except RuntimeError as error:
        print(error)
        if rank == victim:
            has_raised.touch()
        sys.exit(3)
"""


@pytest.mark.beyond("gloo", "the others wait for their deadline")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_cannot_start_raises_before_the_others_come(backend, tmp_path, victim) -> None:
    args = [backend, str(victim), str(tmp_path / "store")]
    results = harness.run_script(CANNOT, 3, tmp_path, 60, expect=3, args=args)
    for result in results:
        assert "UCX_TLS=nonsense" in result.stdout, result.describe()
        if result.rank != victim:
            said = f"rank {victim} of 3 could not make the group"
            assert said in result.stdout, result.describe()


def body_end_in_init(directory: str) -> str:
    """All but rank 0 wait for it in init, and it comes later. Rank 3 comes when one is dead."""
    rank = harness.current_rank()
    seat = pathlib.Path(directory, f"rank{rank}")
    if rank == 0:
        wait_until_in_init(directory, [1, 2])
    if rank == 3:
        harness.wait_until(pathlib.Path(directory, "killed").exists)
    seat.write_text(str(os.getpid()))
    try:
        dist.init_process_group(
            "q7x2",
            store=dist.FileStore(f"{directory}/store", 4),
            rank=rank,
            world_size=4,
            timeout=timedelta(seconds=NEVER),
        )
    except dist.DistBackendError as error:
        return str(error)
    return ""


def wait_until_in_init(directory: str, ranks: list[int]) -> None:
    for rank in ranks:
        seat = pathlib.Path(directory, f"rank{rank}")
        harness.wait_until(lambda seat=seat: seat.exists() and seat.read_text() != "")
        wait_until_asleep(int(seat.read_text()))


@pytest.mark.beyond("gloo", "waits for the timeout")
@pytest.mark.parametrize("victim", [0, 1, pytest.param(2, marks=OTHER_VICTIM)])
def test_a_process_that_is_killed_in_init_is_named(new_pool, backend, shared, victim) -> None:
    pool = new_pool(4)
    group = harness.GroupSpec(backend, key="killed in init", init="none")
    ranks = range(4) if victim else range(3)  # nobody tells a rank that comes after rank 0 died
    pool.start(body_end_in_init, group, ranks=list(ranks), directory=shared)
    wait_until_in_init(shared, [0, 1, 2])
    pool.signal(victim, signal.SIGKILL)
    pool.processes[victim].join()
    pathlib.Path(shared, "killed").touch()
    for outcome in pool.collect(stop_on_failure=False):
        if outcome.rank == victim:
            assert outcome.kind == "died"
        else:
            assert outcome.kind == "ok", outcome.describe()
            assert f"rank {victim} (pid " in outcome.value, outcome.value
            assert "its process has ended" in outcome.value, outcome.value


@pytest.mark.beyond("gloo", "waits for the timeout")
@pytest.mark.ranks(2, init="none", fresh=True, timeout=NEVER)
def test_a_rank_that_stays_for_others_keeps_no_more_than_it_needs(backend, shared) -> None:
    """Rank 1 cannot start and rank 2 does not come, for whom rank 0 stays a while."""
    rank = harness.current_rank()
    if rank == 1:
        os.environ["UCX_TLS"] = "nonsense"
    store = dist.FileStore(f"{shared}/store", 3)
    with pytest.raises(RuntimeError, match="UCX_TLS=nonsense"):
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=3, timeout=timedelta(seconds=NEVER)
        )
    if rank == 0:
        harness.wait_until(lambda: "q7x2-driver" not in threads())
        assert "q7x2-linger" in threads()


def threads() -> set[str]:
    """The names of this process's threads."""
    names = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # one that has just ended
            names.add((task / "comm").read_text().strip())
    return names
