"""Which UCX carries the data: the wheel's, the system's, or one at a path."""

from __future__ import annotations

import ctypes.util
import pathlib

import pytest
import torch
import torch.distributed as dist
from values import assert_bits, integers

pytestmark = pytest.mark.beyond("gloo", "this is about UCX")


def loaded() -> set[str]:
    """The files of libucp that this process has mapped."""
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in maps if "libucp" in line}


def check(world_size: int) -> str:
    for size in (1, 5000, 1 << 20):
        tensor = integers(dist.get_rank(), size, torch.float32)
        dist.all_reduce(tensor)
        assert_bits(tensor, sum(integers(r, size, torch.float32) for r in range(world_size)))
    (path,) = loaded()
    return path


@pytest.mark.ranks(2, fresh=True)
def test_the_wheel_by_default(world_size: int) -> None:
    assert "site-packages" in check(world_size)


@pytest.mark.skipif(ctypes.util.find_library("ucp") is None, reason="needs the package libucx0")
@pytest.mark.ranks(2, 3, env={"Q7X2_UCX": "system"})
def test_the_system(world_size: int) -> None:
    assert "site-packages" not in check(world_size)


@pytest.mark.skipif(ctypes.util.find_library("ucp") is None, reason="needs the package libucx0")
@pytest.mark.ranks(2, init="none", fresh=True)
def test_a_path(backend: str, shared: str, world_size: int) -> None:
    import os

    import harness

    candidates = sorted(pathlib.Path("/usr/lib").glob("*/libucp.so.0"))
    assert candidates
    os.environ["Q7X2_UCX"] = str(candidates[0].parent)
    dist.init_process_group(
        backend,
        store=dist.FileStore(f"{shared}/store", world_size),
        rank=harness.current_rank(),
        world_size=world_size,
    )
    used = pathlib.Path(check(world_size)).resolve()
    assert used == candidates[0].resolve()
    dist.destroy_process_group()
