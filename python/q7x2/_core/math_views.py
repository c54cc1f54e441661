"""Conjugate and negative views come to q7x2's backends as they are, so their results are not lost.

``torch.conj(x)`` and ``torch.conj(x).imag`` share the memory of ``x``, and torch's dispatcher gives
the operations of c10d copies of them. A result that is written into such a copy never arrives. The
backends of others, which may read the memory as it is, go on getting copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree

from q7x2._core.backends import is_on_q7x2

_OPERATIONS = (
    "allgather_",
    "_allgather_base_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "allreduce_",
    "allreduce_coalesced_",
    "alltoall_",
    "alltoall_base_",
    "broadcast_",
    "gather_",
    "recv_",
    "recv_any_source_",
    "reduce_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
    "scatter_",
)


@functools.cache
def pass_on() -> torch.library.Library:
    """Let q7x2's backends take such views themselves in the operations of c10d.

    Returns:
        What keeps this setting; it lives as long as the process.
    """
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    for key in ("Conjugate", "Negative"):
        for name in _OPERATIONS:
            if hasattr(torch.ops.c10d, name):
                kernel = _kernel(name, key)
                library.impl(name, kernel, key, with_keyset=True)  # type: ignore[no-untyped-call]
    return library


def _kernel(name: str, key: str) -> Callable[..., Any]:
    """What the dispatcher calls if a tensor of operation ``name`` is such a view."""
    operation = getattr(torch.ops.c10d, name).default
    later = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, key))
    resolve = torch.Tensor.resolve_conj if key == "Conjugate" else torch.Tensor.resolve_neg

    def run(keys: torch._C.DispatchKeySet, *arguments: Any) -> Any:
        if not _is_ours(arguments):
            arguments = _pytree.tree_map_only(torch.Tensor, resolve, arguments)
        return operation.redispatch(keys & later, *arguments)

    return run


def _is_ours(arguments: tuple[Any, ...]) -> bool:
    """Whether the group of a call has q7x2's backend for the call's tensors."""
    tensor = next(leaf for leaf in _pytree.tree_leaves(arguments) if torch.is_tensor(leaf))
    (group,) = (a for a in arguments if isinstance(a, torch.ScriptObject) and _is_group(a))
    return is_on_q7x2(dist.ProcessGroup.unbox(group), tensor.device)


def _is_group(value: torch.ScriptObject) -> bool:
    return value._type().qualified_name().endswith(".c10d.ProcessGroup")
