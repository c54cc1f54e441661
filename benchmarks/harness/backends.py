"""What runs a collective: a torch process group or an MPI communicator.

`gloo`, `q7x2`, `openmpi` are what they say. `q7x2:ring` is q7x2 restricted to some algorithms, as
`with q7x2.collectives.algorithm("ring")` does. `q7x2+int8` is q7x2 with a codec, `q7x2+int8@slow`
the same on some edges. `empty` is torch's own C++ backend that does nothing: what any call costs.

All q7x2 of a job are one process group. In groups of their own they would differ by more than what
is compared: by where their shared memory happens to lie, and by their connections.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist

from benchmarks.harness.ops import Buffers, Op

OPENMPI = "openmpi"
EMPTY = "empty"


# Fewer than one of so many bytes do not do with any codec: the traffic went another way.
_MOST_COMPRESSION = 128
# See docs/planner_choice.md, "The calls themselves decide".
_SETTLED_AFTER = 50


class Backend(Protocol):
    computes: bool  # whether its results mean anything
    tolerance: float  # the relative error that they may have
    share: float  # of the least bytes of the collective, the least that it can do with
    settles: int  # calls of one kind after which it does not change how they run

    def bind(self, op: Op, buffers: Buffers) -> Callable[[], object]:
        """A call without arguments that runs `op` on `buffers` and returns when it is done."""

    def turn(self) -> AbstractContextManager[None]:
        """Holds while such calls are made."""


class TorchBackend:
    """`groups`: those of the job so far, by c10d's name of the backend."""

    def __init__(self, name: str, groups: dict[str, dist.ProcessGroup]) -> None:
        name, _, codec = name.partition("+")
        self._codec, _, self._edges = codec.partition("@")
        name, _, self._algorithms = name.partition(":")
        self.computes = name != EMPTY
        self.tolerance = 4.0 if self._codec else 0.0
        self.share = 1 / _MOST_COMPRESSION if self._codec else 1.0
        chooses = name == "q7x2" and not self._codec and not self._algorithms
        self.settles = _SETTLED_AFTER if chooses else 0
        if name == EMPTY:
            # Registers the backend "fake".
            import torch.testing._internal.distributed.fake_pg  # noqa: F401

            name = "fake"
        if name != "q7x2" or name not in groups:
            groups[name] = dist.new_group(backend=name)
        self._group = groups[name]

    @property
    def fabric_json(self) -> str:
        """What q7x2 knows of the hosts and the network; other backends know nothing."""
        text: str = self._group._get_backend(torch.device("cpu")).fabric_json
        return text

    def bind(self, op: Op, buffers: Buffers) -> Callable[[], object]:
        group, codec, edges = self._group, self._codec, self._edges or "auto"
        if not codec:
            return lambda: op.torch_call(buffers, group)
        if op.noise is None:
            raise ValueError(f"{op.name} takes no codec")
        import q7x2

        return lambda: q7x2.all_reduce(buffers.send, codec=codec, group=group, edges=edges)

    def history(self, op: Op, size: int) -> dict[str, Any]:
        """How q7x2 came to its choice for such calls (q7x2.plan.plan_history)."""
        import q7x2

        bytes_ = op.tuned_size(size, dist.get_world_size())
        kinds = [
            kind
            for kind in q7x2.plan.plan_history(self._group)
            if kind["collective"] == op.name
            and kind["bytes"] is not None
            and kind["bytes"] // 2 < bytes_ <= kind["bytes"]
        ]
        return max(kinds, key=lambda kind: int(kind["calls"]))

    def turn(self) -> AbstractContextManager[None]:
        if not self._algorithms:
            return nullcontext()
        import q7x2

        return q7x2.collectives.algorithm(self._algorithms)


class OpenMpiBackend:
    """Open MPI through mpi4py's buffer interface, on the memory of the same tensors."""

    computes = True
    tolerance = 0.0
    share = 1.0
    settles = 0

    def __init__(self) -> None:
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD.Dup()

    def bind(self, op: Op, buffers: Buffers) -> Callable[[], object]:
        if (call := op.mpi_call) is None:
            raise ValueError(f"Open MPI has no {op.name}")
        comm, send, receive = self._comm, buffers.send.numpy(), buffers.receive.numpy()
        return lambda: call(comm, send, receive)

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()


def labels(names: list[str]) -> list[str]:
    """Names made distinct, so that a backend can be compared with itself: gloo, gloo#2."""
    return [
        name if names[:i].count(name) == 0 else f"{name}#{names[:i].count(name) + 1}"
        for i, name in enumerate(names)
    ]


def create(names: list[str]) -> dict[str, Backend]:
    """All backends side by side in this process; every rank calls this in the same order."""
    groups: dict[str, dist.ProcessGroup] = {}
    return {
        label: OpenMpiBackend() if name == OPENMPI else TorchBackend(name, groups)
        for label, name in zip(labels(names), names, strict=True)
    }
