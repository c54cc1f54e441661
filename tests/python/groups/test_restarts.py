"""Groups made again: after torchrun restarts, on the same port, after a reset."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import textwrap
import time
from datetime import timedelta

import harness
import interpreters
import pytest
import torch
import torch.distributed as dist
from broken_connections import reduce_for_ever, reset_connections
from deadlines import NEVER
from values import assert_bits, meet

from tests.lab.processes import free_port

# --- torchrun --max-restarts ---------------------------------------------------------------------

# Trains ten steps with a checkpoint after each. In its first attempt the victim dies in step five,
# or while the group is made.
TRAIN = """
    import json, os, pathlib, signal, sys, threading, time
    import torch, torch.distributed as dist
    from datetime import timedelta

    backend, victim, how, where, directory = sys.argv[1:]
    directory = pathlib.Path(directory)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    doomed = attempt == 0 and rank == int(victim)

    def end(*_):
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("the user's bug")

    if doomed and where == "init":
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
    dist.init_process_group(backend, timeout=timedelta(seconds=600))
    if doomed and where == "init":
        end()

    checkpoint = directory / "checkpoint.pt"
    state = {"step": 0, "weights": torch.zeros(1000)}
    if rank == 0 and checkpoint.exists():
        state = torch.load(checkpoint)
    step = torch.tensor(state["step"])
    weights = state["weights"]
    dist.broadcast(step, 0)
    dist.broadcast(weights, 0)
    resumed = int(step)
    for now in range(resumed, 10):
        gradient = torch.full((1000,), float(rank + now))
        work = dist.all_reduce(gradient, async_op=True)
        if doomed and now == 5:
            end()
        work.wait()
        weights += gradient
        if rank == 0:
            torch.save({"step": now + 1, "weights": weights}, directory / "new.pt")
            os.replace(directory / "new.pt", checkpoint)
    dist.barrier()
    if rank == 0:
        result = {"attempt": attempt, "resumed": resumed, "weights": weights.tolist()}
        (directory / "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()
"""

RANKS = 3
SCENARIOS = {
    "standalone, rank 0 killed in a collective": ("standalone", 0, "killed", "collective"),
    "standalone, rank 1 raises in a collective": ("standalone", 1, "raises", "collective"),
    "static, rank 0 raises in init": ("static", 0, "raises", "init"),
    "static, rank 2 killed in a collective": ("static", 2, "killed", "collective"),
    "c10d, rank 0 killed in init": ("c10d", 0, "killed", "init"),
    "c10d, rank 1 raises in init": ("c10d", 1, "raises", "init"),
}


def torchrun(rendezvous: str) -> list[str]:
    options = {
        "standalone": ["--standalone"],
        "static": ["--master-addr=127.0.0.1", f"--master-port={free_port()}"],
        "c10d": [f"--rdzv-endpoint=localhost:{free_port()}"],
    }[rendezvous]
    if rendezvous != "standalone":
        options.append(f"--rdzv-backend={rendezvous}")
    command = [interpreters.python(), "-m", "torch.distributed.run", *options, "--max-restarts=2"]
    return [*command, f"--nproc-per-node={RANKS}", "--monitor-interval=0.1"]


def training(scenario: str, backend: str, directory: pathlib.Path) -> list[str]:
    """The program of a worker, and its arguments."""
    _, victim, how, where = SCENARIOS[scenario]
    path = directory / "train.py"
    path.write_text(textwrap.dedent(TRAIN))
    return [str(path), backend, str(victim), how, where, str(directory)]


def check_result(scenario: str, directory: pathlib.Path) -> None:
    where = SCENARIOS[scenario][3]
    result = json.loads((directory / "result.json").read_text())
    assert result["attempt"] == 1, "one restart is enough"
    # Step 5. But torchrun may end rank 0 before it has saved that step, and the collective of a
    # rank that raises may be complete before it has left.
    assert result["resumed"] in ((4, 5, 6) if where == "collective" else (0,))
    expected = float(sum(rank + step for rank in range(RANKS) for step in range(10)))
    assert result["weights"] == [expected] * 1000


def restart(scenario: str, backend: str, directory: pathlib.Path) -> None:
    command = torchrun(SCENARIOS[scenario][0])
    done = subprocess.run(
        [*command, *training(scenario, backend, directory)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **interpreters.environment(), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_result(scenario, directory)


@pytest.mark.beyond("gloo", "reads the addresses of the last attempt")
def test_torchrun_restarts(backend, tmp_path) -> None:
    restart("static, rank 0 raises in init", backend, tmp_path)


@pytest.mark.nightly("18 minutes: each scenario five times")
@pytest.mark.beyond("gloo", "reads the addresses of the last attempt")
@pytest.mark.parametrize("repetition", range(5))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_torchrun_restarts_always(backend, tmp_path, scenario, repetition) -> None:
    restart(scenario, backend, tmp_path)


# --- again on the same port ----------------------------------------------------------------------

AGAIN = """
    import sys, torch, torch.distributed as dist
    from datetime import timedelta
    for round in range({rounds}):
        dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=600))
        total = torch.ones(10)
        dist.all_reduce(total)
        assert total[0] == dist.get_world_size()
        dist.destroy_process_group()
    print("all rounds")
"""


@pytest.mark.parametrize(
    ("world_size", "rounds"),
    [
        (3, 10),
        pytest.param(2, 50, marks=pytest.mark.nightly("fifty rounds instead of ten")),
        pytest.param(3, 50, marks=pytest.mark.nightly("fifty rounds instead of ten")),
    ],
)
def test_init_and_destroy_on_the_same_port(backend, tmp_path, world_size, rounds) -> None:
    source = AGAIN.replace("{rounds}", str(rounds))
    for result in harness.run_script(source, world_size, tmp_path, 120, args=[backend]):
        assert result.stdout.strip() == "all rounds", result.describe()


@pytest.mark.ranks(3, init="none", fresh=True)
@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_a_group_of_the_same_name_in_one_store(
    world_size: int, kind: str, shared: str, backend: str
) -> None:
    """The keys of the group before are still there."""
    path = pathlib.Path(shared) / "port"
    rank = harness.current_rank()
    if kind == "tcp" and rank == 0:
        port = free_port()
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        (path.parent / "new").write_text(str(port))
        (path.parent / "new").replace(path)
    elif kind == "tcp":
        while not path.exists():
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int(path.read_text()), wait_for_workers=False)
    else:
        store = dist.FileStore(str(path), world_size)
    for turn in range(5):
        dist.init_process_group(
            backend,
            store=store,
            rank=(rank + turn) % world_size,
            world_size=world_size,
            timeout=timedelta(seconds=20),
        )
        total = torch.full((10,), float(dist.get_rank()))
        dist.all_reduce(total)
        assert total[0] == 3
        dist.destroy_process_group()


# --- a connection that is reset ------------------------------------------------------------------


@pytest.mark.ranks(2, 3, env={"UCX_TLS": "tcp"})
def test_a_group_after_a_reset(world_size: int) -> None:
    """The reset ends the groups that used the connection; the next group has a new one."""
    rank = dist.get_rank()
    for turn in range(2 * world_size):  # each rank resets its own twice
        before = dist.new_group(timeout=timedelta(seconds=NEVER))
        total = torch.ones(100_000)
        dist.all_reduce(total, group=before)
        assert total[0] == world_size
        meet()  # the others have their results as well
        if rank == turn % world_size:
            assert reset_connections() > 0
        with pytest.raises(RuntimeError, match="rank"):
            reduce_for_ever(before)
        after = dist.new_group(timeout=timedelta(seconds=NEVER))
        for size in (10, 1_000_000):
            total = torch.full((size,), float(rank))
            dist.all_reduce(total, group=after)
            assert_bits(total, torch.full((size,), float(sum(range(world_size)))))
        dist.destroy_process_group(before)
        dist.destroy_process_group(after)


@pytest.mark.ranks(3, env={"UCX_TLS": "tcp"})
def test_a_reset_costs_only_groups_that_used_it(world_size: int) -> None:
    """Ranks 0 and 1 lose their connections to rank 2, not that to each other."""
    pair = dist.new_group([0, 1])
    both = dist.new_group([0, 1, 2])
    for group in (pair, both):
        if dist.get_rank() in dist.get_process_group_ranks(group):
            dist.all_reduce(torch.ones(100_000), group=group)
    meet()  # the others have their results as well
    if dist.get_rank() == 2:
        assert reset_connections() > 0
    with pytest.raises(RuntimeError, match="rank"):
        reduce_for_ever(both)
    if dist.get_rank() < 2:
        total = torch.ones(1000)
        dist.all_reduce(total, group=pair)
        assert_bits(total, torch.full((1000,), 2.0))
    again = dist.new_group([0, 1, 2])
    total = torch.ones(1000)
    dist.all_reduce(total, group=again)
    assert_bits(total, torch.full((1000,), 3.0))
