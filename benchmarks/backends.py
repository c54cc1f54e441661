"""The two kinds of things that run a collective: a torch process group and an MPI communicator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch.distributed as dist

from benchmarks.ops import Buffers, Op

OPENMPI = "openmpi"


class Backend(Protocol):
    def bind(self, op: Op, buffers: Buffers) -> Callable[[], object]:
        """A call without arguments that runs `op` on `buffers` and returns when it is done."""


class TorchBackend:
    def __init__(self, name: str) -> None:
        self._group = dist.new_group(backend=name)

    def bind(self, op: Op, buffers: Buffers) -> Callable[[], object]:
        group = self._group
        return lambda: op.torch_call(buffers, group)


class OpenMpiBackend:
    """Open MPI through mpi4py's buffer interface, on the memory of the same tensors."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD.Dup()

    def bind(self, op: Op, buffers: Buffers) -> Callable[[], object]:
        comm, send, receive = self._comm, buffers.send.numpy(), buffers.receive.numpy()
        return lambda: op.mpi_call(comm, send, receive)


def labels(names: list[str]) -> list[str]:
    """Names made distinct, so that a backend can be compared with itself: gloo, gloo#2."""
    return [
        name if names[:i].count(name) == 0 else f"{name}#{names[:i].count(name) + 1}"
        for i, name in enumerate(names)
    ]


def create(names: list[str]) -> dict[str, Backend]:
    """All backends side by side in this process; every rank calls this in the same order."""
    return {
        label: OpenMpiBackend() if name == OPENMPI else TorchBackend(name)
        for label, name in zip(labels(names), names, strict=True)
    }
