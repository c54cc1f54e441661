"""Meshes over which FSDP2 also replicates: their replicas are taken out of FSDP2's hands.

A param group knows from its mesh over which ranks it shards and over which it replicates, and
reduces over both by itself. A hook that averages over the replicas takes this dimension away::

    HSDP (2 hosts of 4)     4 shards, 2 replicas   ->   FSDP2 sees 4 shards, a hook 2 replicas
    replicate() (8 ranks)   8 replicas             ->   FSDP2 sees one rank, a hook 8 replicas
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from q7x2._core.groups import ranks_of
from q7x2.fsdp.torch_internals import param_groups

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


def replica_group_of(group: Any) -> ProcessGroup | None:
    """The process group over which a param group replicates; None: it only shards."""
    replicas: ProcessGroup | None = getattr(group.mesh_info, "replicate_process_group", None)
    return replicas


def only_replicates(model: torch.nn.Module) -> bool:
    """Whether ``model`` is one of FSDP2's ``replicate()``: no part of it is sharded."""
    groups = [group for _, _, group in param_groups(model)]
    return bool(groups) and not any(hasattr(g.mesh_info, "shard_process_group") for g in groups)


def check_same_ranks(groups: Sequence[Any]) -> ProcessGroup:
    """The process group over which all param groups replicate.

    Raises:
        ValueError: They replicate over different ranks, or some do not replicate.
    """
    found = [replica_group_of(group) for group in groups]
    ranks = [None if replicas is None else tuple(ranks_of(replicas)) for replicas in found]
    if len(set(ranks)) != 1 or found[0] is None:
        raise ValueError(
            "the model's modules replicate over different ranks: expected one mesh for all of "
            f"them, got replicas {ranks}"
        )
    return found[0]


def without_replicas(group: Any) -> Callable[[], None]:
    """Let a param group reduce over its shards only; return what undoes it."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import (
        DataParallelMeshInfo,
        FSDPMeshInfo,
        HSDPMeshInfo,
    )

    before = group.mesh_info, group.post_forward_mesh_info
    whole = group.mesh_info
    if isinstance(whole, HSDPMeshInfo):
        shards = _copied(whole, FSDPMeshInfo, shard_mesh_dim=whole.shard_mesh_dim)
        shards.reduce_scatter_process_group = getattr(whole, "reduce_scatter_process_group", None)
        group.mesh_info = shards
        if group.post_forward_mesh_info == whole:
            group.post_forward_mesh_info = shards
    else:
        group.mesh_info = _copied(
            whole, DataParallelMeshInfo, replicate_mesh_dim=whole.replicate_mesh_dim
        )

    def restore() -> None:
        group.mesh_info, group.post_forward_mesh_info = before

    return restore


def _copied(mesh_info: Any, kind: Any, **dimension: int | None) -> Any:
    names = ("dp_mesh_dims", "spmd_mesh")  # not in each version of torch
    more = {name: getattr(mesh_info, name) for name in names if hasattr(mesh_info, name)}
    return kind(mesh=mesh_info.mesh, **dimension, **more)


class HybridMesh:
    """An HSDP model whose replicas a hook averages.

    Args:
        model: One that ``fully_shard`` shards over a mesh of two dimensions.

    Raises:
        ValueError: Some of its modules replicate, and others do not or over other ranks.

    Attributes:
        replica_group: The ranks that hold the same shards; None: the model is not replicated.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        groups = [group for _, _, group in param_groups(model)]
        self.replica_group: ProcessGroup | None = None
        self._restore: list[Callable[[], None]] = []
        if any(replica_group_of(group) is not None for group in groups):
            self.replica_group = check_same_ranks(groups)
            self._restore = [without_replicas(group) for group in groups]

    def checked(self, replica_group: ProcessGroup | None) -> ProcessGroup | None:
        """The replicas' process group: that of the mesh, or the one that the caller gives.

        Raises:
            ValueError: There are two.
        """
        if self.replica_group is not None and replica_group is not None:
            raise ValueError(
                "the model's mesh has two dimensions, and the ranks of its replicas: expected no "
                "replica_group, which is for a model sharded over a mesh of one dimension"
            )
        return replica_group if self.replica_group is None else self.replica_group

    def remove(self) -> None:
        """Let FSDP2 reduce over the replicas again."""
        while self._restore:
            self._restore.pop()()
