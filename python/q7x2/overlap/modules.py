"""Hooks of modules: which one waits for which parameters, in which order forward needs them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

Moment = Callable[[nn.Module], None]


class ModuleHook:
    """A hook of a module. In copies of the model it does nothing: they are not attached."""

    def __init__(self, call: Moment | None = None) -> None:
        self._call = call

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if self._call is not None:
            self._call(module)

    def __reduce__(self) -> tuple[type[ModuleHook], tuple[()]]:
        return ModuleHook, ()


def register_reduction(ddp: DistributedDataParallel, reduce: Callable[[GradBucket], Any]) -> None:
    """Let the bound method ``reduce`` reduce the buckets of ``ddp``."""
    method = weakref.WeakMethod(reduce)  # DDP's reducer, which is C++, would keep a cycle for ever

    def hook(state: Any, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations
        found = method()
        assert found is not None  # hooks of the model keep its object
        return found(bucket)

    hook.__qualname__ = "q7x2.overlap.OverlapOptions"  # as DDP calls it
    ddp.register_comm_hook(None, hook)


class Needs:
    """What each module of a model needs, learnt from a forward.

    A module that is called needs its own parameters. Some modules are never called, because their
    parent uses their parameters: those of a ``ParameterList``, or ``out_proj`` of
    ``nn.MultiheadAttention``. The nearest module above them that is called needs these.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._called: dict[nn.Module, int] = {}

    def note(self, module: nn.Module) -> None:
        """``module`` is called, in a forward from which needs are learnt."""
        self._called.setdefault(module, len(self._called))

    def settle(self) -> tuple[dict[nn.Module, list[nn.Parameter]], dict[nn.Parameter, int]]:
        """By module, the parameters that it needs; by parameter, when forward first needs it.

        Parameters of modules that were not called come with the model itself, first of all.
        """
        self._called.setdefault(self._model, -1)
        needs: dict[nn.Module, dict[nn.Parameter, None]] = {}
        self._visit(self._model, self._model, needs)
        first: dict[nn.Parameter, int] = {}
        for module, parameters in needs.items():
            for p in parameters:
                first[p] = min(first.get(p, len(self._called)), self._called[module])
        return {module: list(each) for module, each in needs.items()}, first

    def _visit(
        self,
        module: nn.Module,
        owner: nn.Module,
        needs: dict[nn.Module, dict[nn.Parameter, None]],
    ) -> None:
        owner = module if module in self._called else owner
        for p in module.parameters(recurse=False):
            needs.setdefault(owner, {})[p] = None
        for child in module.children():
            self._visit(child, owner, needs)


def chunks_needed(
    needs: Mapping[nn.Module, Sequence[nn.Parameter]], chunks: Sequence[Sequence[nn.Parameter]]
) -> dict[nn.Module, list[int]]:
    """By module, the numbers of the chunks that have parameters which it needs, ascending.

    Args:
        needs: By module, the parameters that it needs.
        chunks: The parameters of each chunk.
    """
    chunks_with: dict[nn.Parameter, list[int]] = {}
    for number, parameters in enumerate(chunks):
        for p in parameters:
            chunks_with.setdefault(p, []).append(number)
    return {
        module: sorted({number for p in each for number in chunks_with.get(p, ())})
        for module, each in needs.items()
    }
