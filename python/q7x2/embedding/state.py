"""The state of a sharded embedding, as ``state_dict`` and distributed checkpoints (DCP) hold it.

    rows               (rows, dim)   the rows, by position
    row_multiplier     ()            the map of rows to positions
    optimizer_lr       ()            the learning rate
    optimizer_step     ()            the steps, if the optimizer counts them
    optimizer_NAME     (rows, dim)   what the optimizer keeps for each row, by position

What is by position is a DTensor of one range per rank. DCP loads it on any number of ranks, and the
optimizer's state follows the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from q7x2.embedding.exchange import Exchange
from q7x2.embedding.row_map import RowMap
from q7x2.embedding.shard import Shard


def distributed(local: Tensor, exchange: Exchange) -> Any:
    """The DTensor of shape (rows, dim) of which ``local`` is this rank's part, without a copy."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import Shard as ShardPlacement

    mesh = DeviceMesh.from_group(exchange.group, local.device.type)
    shape = torch.Size((exchange.map.rows, local.shape[1]))
    return DTensor.from_local(
        local, mesh, [ShardPlacement(0)], run_check=False, shape=shape, stride=(local.shape[1], 1)
    )


def names(shard: Shard) -> list[str]:
    """The keys that :func:`take` returns."""
    if shard.optimizer is None:
        return ["rows", "row_multiplier"]
    states = [f"optimizer_{name}" for name in shard.row_states]
    return ["rows", "row_multiplier", "optimizer_lr", "optimizer_step", *states]


def take(shard: Shard, exchange: Exchange) -> dict[str, Any]:
    """The state by name; tensors with rows share their memory with the embedding."""
    state = {
        "rows": distributed(shard.rows, exchange),
        "row_multiplier": torch.tensor(exchange.map.multiplier),
    }
    if shard.optimizer is not None:
        rate = float(shard.optimizer.param_groups[0]["lr"])
        state["optimizer_lr"] = torch.tensor(rate, dtype=torch.float64)
        state["optimizer_step"] = torch.tensor(shard.step)
        for name, tensor in shard.row_states.items():
            state[f"optimizer_{name}"] = distributed(tensor, exchange)
    return state


@torch.no_grad()
def load(state: Mapping[str, Any], shard: Shard, row_map: RowMap) -> list[str]:
    """Take over a state, or a part of one; return what is wrong with it.

    A tensor with rows is a DTensor over the ranks of the embedding, or a plain tensor of all rows
    by position. If something is wrong, nothing has changed.
    """
    targets = {"rows": shard.rows}
    targets |= {f"optimizer_{name}": tensor for name, tensor in shard.row_states.items()}
    problems = []
    parts = {}
    for name in targets.keys() & state.keys():
        part = _local_part(state[name], row_map)
        if part.shape == targets[name].shape:
            parts[name] = part
        else:
            problems.append(
                f"{name}: expected shape {(row_map.rows, shard.rows.shape[1])}, got "
                f"{tuple(state[name].shape)}"
            )
    if "row_multiplier" in state and int(state["row_multiplier"]) != row_map.multiplier:
        problems.append(
            f"row_multiplier: expected {row_map.multiplier}, got {int(state['row_multiplier'])}: "
            "the rows are in another order"
        )
    if problems:
        return problems
    for name, part in parts.items():
        targets[name].copy_(part)
    if shard.optimizer is not None and "optimizer_lr" in state:
        shard.optimizer.param_groups[0]["lr"] = float(state["optimizer_lr"])
    if "optimizer_step" in state:
        shard.step = int(state["optimizer_step"])
    return []


def _local_part(value: Any, row_map: RowMap) -> Tensor:
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        local: Tensor = value.to_local()
        return local if value.shape[:1] == (row_map.rows,) else local.new_empty(0)
    whole: Tensor = value
    return whole[row_map.begin : row_map.end] if len(whole) == row_map.rows else whole.new_empty(0)
