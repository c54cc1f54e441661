"""A user's optimizer that steps on flat shards, and its state in both forms.

The user's optimizer keeps the model's parameters and its options. Each chunk has a copy of it with
the same class and options, whose parameters are the chunk's pieces: flat tensors, one per parameter
group. That gives the same result only if the optimizer is elementwise, which is tried out.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

State = dict[str, Any]


class NotElementwiseError(TypeError):
    """The optimizer does not update each element by itself, so it cannot step on shards."""


# What a gradient scaler sets on optimizers that unscale gradients themselves.
_OF_SCALERS = ("grad_scale", "found_inf")
_PROBE_STEPS = 3


def copy_over(
    optimizer: torch.optim.Optimizer, pieces: Mapping[int, nn.Parameter]
) -> torch.optim.Optimizer:
    """An optimizer of the same class and options, without state and hooks, over ``pieces``.

    Args:
        pieces: By the index of the parameter group that they belong to.
    """
    made: torch.optim.Optimizer = object.__new__(type(optimizer))
    # Schedulers put a `step` of their own into the instance.
    made.__dict__.update({key: v for key, v in optimizer.__dict__.items() if key != "step"})
    made.state = defaultdict(dict)
    made.param_groups = [
        {**optimizer.param_groups[group], "params": [piece]} for group, piece in pieces.items()
    ]
    made._optimizer_step_pre_hooks = OrderedDict()
    made._optimizer_step_post_hooks = OrderedDict()
    return made


def follow(
    made: torch.optim.Optimizer, optimizer: torch.optim.Optimizer, groups: Sequence[int]
) -> None:
    """Take over the options that ``optimizer`` has now, such as learning rates.

    Args:
        groups: The indices of the parameter groups of ``made`` in ``optimizer``.
    """
    for mine, group in zip(made.param_groups, groups, strict=True):
        its = optimizer.param_groups[group]
        mine.update({key: value for key, value in its.items() if key != "params"})
    for name in _OF_SCALERS:
        if hasattr(optimizer, name):
            setattr(made, name, getattr(optimizer, name))
        else:
            made.__dict__.pop(name, None)


def merged_values(states: Sequence[State], key: str, names: Sequence[str]) -> Any:
    """A value that all parameters of a piece must share, such as the number of steps.

    Raises ValueError if their states differ.
    """
    first = states[0][key]
    for state, name in zip(states, names, strict=True):
        value = state[key]
        is_equal = torch.equal(value, first) if isinstance(value, Tensor) else bool(value == first)
        if not is_equal:
            raise ValueError(
                f"the optimizer's state has {key}={first} for {names[0]!r} and {key}={value} for "
                f"{name!r}: with forward overlap they are updated together and need equal values"
            )
    return first.clone() if isinstance(first, Tensor) else first


def elementwise_keys(optimizer: torch.optim.Optimizer, device: torch.device) -> frozenset[str]:
    """Try on small tensors whether steps on flat pieces give the same as steps on whole parameters.

    Returns:
        The keys of its state that have one element per element of a parameter.

    Raises:
        NotElementwiseError: They differ, or the optimizer cannot step on flat pieces.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise _refusal(optimizer, "it needs a closure")
    keys: frozenset[str] = frozenset()
    for index, group in enumerate(optimizer.param_groups):
        keys |= _try_group(optimizer, index, group, device)
    return keys


def _try_group(
    optimizer: torch.optim.Optimizer, index: int, group: dict[str, Any], device: torch.device
) -> frozenset[str]:
    generator = torch.Generator().manual_seed(0)
    # Other magnitudes in each piece: norms of pieces are not those of the whole.
    values = torch.randn(12, 8, generator=generator) * torch.logspace(-2, 1, 12).unsqueeze(1)
    values = values.to(device)
    whole = nn.Parameter(values.clone())
    cuts = (0, 17, 40, 96)
    pieces = [
        nn.Parameter(values.flatten()[begin:end].clone()) for begin, end in itertools.pairwise(cuts)
    ]
    optimizers = [(copy_over(optimizer, {index: p}), p) for p in (whole, *pieces)]
    for made, _ in optimizers:
        if "lr" in group:  # at the user's rate, differences may be too small to see
            made.param_groups[0]["lr"] = 0.1
        for name in _OF_SCALERS:
            made.__dict__.pop(name, None)
    try:
        for _ in range(_PROBE_STEPS):
            gradient = torch.randn(12, 8, generator=generator).to(device)
            whole.grad = gradient.clone()
            for piece, begin, end in zip(pieces, cuts[:-1], cuts[1:], strict=True):
                piece.grad = gradient.flatten()[begin:end].clone()
            for made, _ in optimizers:
                made.step()
    except Exception as error:
        raise _refusal(optimizer, f"a step on flat tensors raises {error!r}") from error
    together = torch.cat([piece.detach() for piece in pieces])
    if not torch.allclose(together, whole.detach().flatten(), rtol=1e-4, atol=1e-6):
        raise _refusal(optimizer, "steps on parts of a parameter are not those on the whole")
    keys = set()
    for made, parameter in optimizers:
        for key, value in made.state[parameter].items():
            if isinstance(value, Tensor) and value.dim():
                if value.shape != parameter.shape:
                    raise _refusal(optimizer, f"its {key!r} has not the shape of the parameter")
                keys.add(key)
    return frozenset(keys)


def _refusal(optimizer: torch.optim.Optimizer, why: str) -> NotElementwiseError:
    return NotElementwiseError(
        f"forward overlap steps on shards of parameters, so it needs an optimizer that updates "
        f"each element by itself, such as SGD, Adam or AdamW; {type(optimizer).__name__} does not: "
        f"{why}"
    )


def each_state(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], names: Sequence[str]
) -> list[State] | None:
    """The states of parameters that share a piece; None if none of them has stepped.

    Raises ValueError if only some of them have, or if they have other keys.
    """
    states = [optimizer.state.get(p) or {} for p in parameters]
    if not any(states):
        return None
    for state, name in zip(states, names, strict=True):
        if state.keys() != states[0].keys():
            raise ValueError(
                f"the optimizer's state has {sorted(states[0])} for {names[0]!r} and "
                f"{sorted(state)} for {name!r}: with forward overlap they are updated together"
            )
    return states
