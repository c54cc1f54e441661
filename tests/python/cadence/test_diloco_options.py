"""What DiLoCo refuses: options, models and groups that do not fit, when it is made."""

from __future__ import annotations

from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from diloco_training import made
from hook_training import net
from torch import nn

MISTAKES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"sync_every": 0}, ValueError, "sync_every must be at least 1, got 0"),
    ({"sync_every": 2.5}, ValueError, "sync_every must be an int of at least 1, got 2.5"),
    ({"sync_every": 2, "fragments": 3}, ValueError, "sync_every must be at least fragments"),
    (
        {"sync_every": 2, "overlap": 2},
        ValueError,
        "sync_every must be at least fragments and more than",
    ),
    ({"fragments": 0}, ValueError, "fragments must be at least 1"),
    ({"fragments": 99, "sync_every": 100}, ValueError, "at most the number of parameters"),
    ({"overlap": -1}, ValueError, "overlap must not be negative"),
    ({"blend": 1.0}, ValueError, "blend must be at least 0 and less than 1"),
    ({"residual_decay": 0}, ValueError, "residual_decay must be more than 0 and at most 1"),
    ({"codec": "int5"}, ValueError, "codec: .*int5"),
    ({"codec": "sign"}, ValueError, "error feedback, which 'sign' is not"),
    ({"full_precision": ["nothing.here"]}, ValueError, "no parameter's name matches"),
    ({"full_precision": "*.bias"}, ValueError, "full_precision must be a tuple or a list"),
    ({"inner_state": "mean"}, ValueError, "inner_state must be one of keep, average"),
    ({"inner_state": "average", "overlap": 1}, ValueError, "needs overlap=0"),
    ({"edges": "everywhere"}, ValueError, "edges"),
    ({"random_seed": -1}, ValueError, "random_seed must not be negative"),
    ({"outer": torch.optim.SGD}, TypeError, "outer must be an OuterSGD"),
]


@pytest.mark.parametrize(("options", "error", "message"), MISTAKES)
def test_bad_options_raise_when_it_is_made(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        made(**{"sync_every": 4, **options})


def test_bad_models_raise_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="model must be of type Module"):
        q7x2.cadence.DiLoCo(None, torch.optim.SGD(net().parameters(), lr=1), sync_every=2)
    with pytest.raises(TypeError, match="inner must be of type Optimizer"):
        q7x2.cadence.DiLoCo(net(), None, sync_every=2)
    with pytest.raises(
        ValueError, match=r"expected float32, bfloat16 or float16, got torch\.float64"
    ):
        made(net(dtype=torch.float64), sync_every=2)
    with pytest.raises(ValueError, match="no parameters that need gradients"):
        made(net().requires_grad_(False), sync_every=2)
    with pytest.raises(ValueError, match="call init_process_group first"):
        made(sync_every=2)


@pytest.mark.parametrize(
    ("outer", "message"),
    [
        ({"lr": 0}, "lr must be positive"),
        ({"momentum": 1.0}, "momentum must be at least 0 and less than 1"),
        ({"nesterov": 1}, "nesterov must be True or False"),
    ],
)
def test_bad_outer_options_raise_when_they_are_made(outer: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        q7x2.cadence.OuterSGD(**outer)


@pytest.mark.ranks(2)
def test_ranks_with_other_options_or_models_are_told() -> None:
    rank = dist.get_rank()
    with pytest.raises(
        ValueError, match=r"rank 0 has sync_every=2 where rank 1 of the group has sync_every=3"
    ):
        made(sync_every=2 + rank)
    with pytest.raises(ValueError, match=r"parameter 0.weight=4x4 where rank 1 .* has .*=5x4"):
        made(nn.Sequential(nn.Linear(4, 4 + rank)), sync_every=2)


@pytest.mark.beyond("q7x2", "has codecs")
@pytest.mark.ranks(2)
def test_a_codec_needs_q7x2() -> None:
    with pytest.raises(ValueError, match="needs a group with a q7x2 backend"):
        made(sync_every=2, codec="int8")
