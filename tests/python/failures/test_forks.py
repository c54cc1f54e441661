"""Forked, spawned and other child processes of a rank."""

from __future__ import annotations

import os
import subprocess
import textwrap

import interpreters
import pytest
import torch
import torch.distributed as dist
from values import assert_bits


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index * index))


@pytest.mark.ranks(2, fresh=True)
def test_data_loader_workers(world_size: int) -> None:
    """Workers forked after init; batches and collectives in turn."""
    dist.all_reduce(torch.ones(100_000))
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=8, num_workers=2, multiprocessing_context="fork"
    )
    for _ in range(2):
        total = torch.zeros(8)
        for batch in loader:
            total += batch.sum(0)
            step = torch.ones(50_000)
            dist.all_reduce(step)
            assert step[0] == world_size
        dist.all_reduce(total)
        assert_bits(total, torch.full((8,), world_size * float(sum(i * i for i in range(64)))))


@pytest.mark.ranks(2, fresh=True)
def test_fork_after_init_is_harmless(world_size: int) -> None:
    tensor = torch.ones(1 << 18)
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os._exit(7)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    work.wait()
    assert_bits(tensor, torch.full((1 << 18,), float(world_size**2)))


def exit_code(child: int) -> int:
    """A child that hangs outlives the test's deadline."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.ranks(2, fresh=True)
def test_forked_child_that_exits_normally(world_size: int) -> None:
    """A child that runs Python's and C++'s exit handlers must not hang or disturb the parent."""
    dist.all_reduce(torch.ones(1000))
    child = os.fork()
    if child == 0:
        try:
            import ctypes

            ctypes.CDLL(None).exit(5)
        finally:
            os._exit(99)
    assert exit_code(child) == 5
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full((1000,), float(world_size)))


@pytest.mark.beyond("gloo", "hangs in the child")
@pytest.mark.ranks(2, fresh=True)
def test_forked_child_that_uses_the_group_gets_an_error() -> None:
    dist.all_reduce(torch.ones(1000))
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(10))
        except RuntimeError as error:
            os._exit(5 if "fork" in str(error).lower() else 6)
        os._exit(7)
    assert exit_code(child) == 5
    dist.barrier()


def subprocess_of_a_rank() -> int:
    out = subprocess.run(["/bin/echo", "hello"], capture_output=True, text=True, check=True)
    return len(out.stdout)


@pytest.mark.ranks(2)
def test_subprocesses(world_size: int) -> None:
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert subprocess_of_a_rank() == 6
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full((10,), float(world_size**2)))


SPAWNED = """
    import sys, tempfile, torch, torch.distributed as dist, torch.multiprocessing as mp

    def run(rank, backend, path):
        dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=2)
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        assert tensor[0] == 2
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.set_executable(sys.executable)
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(run, args=(sys.argv[1], f"{directory}/store"), nprocs=2)
        print("spawned")
"""


def test_torch_multiprocessing_spawn(backend, tmp_path) -> None:
    path = tmp_path / "spawn.py"
    path.write_text(textwrap.dedent(SPAWNED))
    done = subprocess.run(
        [interpreters.python(), str(path), backend],
        env=os.environ | interpreters.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "spawned" in done.stdout
