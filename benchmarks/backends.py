"""What runs a collective: a torch process group or an MPI communicator.

`gloo`, `q7x2`, `openmpi` are what they say. `q7x2:ring` is q7x2 restricted to some algorithms, as
`Q7X2_ALGO=ring` does, and `q7x2+int8` is q7x2 with a codec. `empty` is torch's own C++
backend that does nothing: what any call costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

from benchmarks.ops import Buffers, Op

OPENMPI = "openmpi"
EMPTY = "empty"


# Fewer than one of so many bytes do not do with any codec: the traffic went another way.
_MOST_COMPRESSION = 64


class Backend(Protocol):
    computes: bool  # whether its results mean anything
    tolerance: float  # the relative error that they may have
    share: float  # of the least bytes of the collective, the least that it can do with

    def bind(self, op: Op, buffers: Buffers) -> Callable[[], object]:
        """A call without arguments that runs `op` on `buffers` and returns when it is done."""


class TorchBackend:
    def __init__(self, name: str) -> None:
        name, _, self._codec = name.partition("+")
        name, _, algorithms = name.partition(":")
        self.computes = name != EMPTY
        self.tolerance = 4.0 if self._codec else 0.0
        self.share = 1 / _MOST_COMPRESSION if self._codec else 1.0
        if name == EMPTY:
            # Registers the backend "fake".
            import torch.testing._internal.distributed.fake_pg  # noqa: F401

            self._group = dist.new_group(backend="fake")
        elif algorithms:
            from q7x2._extension import load

            options = load().Options(algorithms=algorithms)
            self._group = dist.new_group(backend=name, pg_options=options)
        else:
            self._group = dist.new_group(backend=name)

    @property
    def fabric_json(self) -> str:
        """What q7x2 knows of the hosts and the network; other backends know nothing."""
        text: str = self._group._get_backend(torch.device("cpu")).fabric_json
        return text

    def bind(self, op: Op, buffers: Buffers) -> Callable[[], object]:
        group, codec = self._group, self._codec
        if not codec:
            return lambda: op.torch_call(buffers, group)
        if op.noise is None:
            raise ValueError(f"{op.name} takes no codec")
        import q7x2

        return lambda: q7x2.all_reduce(buffers.send, codec, group=group)


class OpenMpiBackend:
    """Open MPI through mpi4py's buffer interface, on the memory of the same tensors."""

    computes = True
    tolerance = 0.0
    share = 1.0

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
