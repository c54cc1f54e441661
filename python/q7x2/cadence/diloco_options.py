"""What a :class:`DiLoCo` is asked for, checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from q7x2._core.option_checks import (
    check_codec,
    check_edges,
    check_factor,
    check_ratio,
    check_seed,
    check_strings,
    check_whole,
)
from q7x2.cadence.diloco_shards import is_sharded
from q7x2.cadence.outer import OuterSGD
from q7x2.hooks.base import check_patterns, matches
from q7x2.policy.cadence import Interval, describe, interval_of

Named = Sequence[tuple[str, Tensor]]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_INNER_STATES = ("keep", "average")


@dataclass(frozen=True, kw_only=True)
class DiLoCoOptions:
    """See :class:`DiLoCo`, which has the same arguments."""

    sync_every: int | Interval
    outer: OuterSGD
    compressor: str | None
    residual_decay: float
    full_precision: Sequence[str]
    random_seed: int
    fragments: int = 1
    overlap: int = 0
    blend: float = 0.0
    inner_state: str = "keep"
    edges: str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.outer, OuterSGD):
            raise TypeError(f"outer must be an OuterSGD, got {self.outer!r}")
        check_whole("fragments", self.fragments, 1)
        check_whole("overlap", self.overlap, 0)
        check_factor("blend", self.blend)
        check_ratio("residual_decay", self.residual_decay)
        check_seed("random_seed", self.random_seed)
        check_strings("full_precision", self.full_precision)
        check_edges("edges", self.edges)
        self._check_compressor()
        if self.inner_state not in _INNER_STATES:
            raise ValueError(
                f"inner_state must be one of {', '.join(_INNER_STATES)}, got {self.inner_state!r}"
            )
        if self.inner_state == "average" and self.overlap:
            raise ValueError("inner_state='average' needs overlap=0: steps in between change it")
        interval_of("sync_every", self.sync_every)
        if isinstance(self.sync_every, int) and self.sync_every < self.shortest:
            raise ValueError(
                "sync_every must be at least fragments and more than overlap, got "
                f"sync_every={self.sync_every}, fragments={self.fragments}, overlap={self.overlap}"
            )

    def _check_compressor(self) -> None:
        from q7x2._core.extension import load

        if self.compressor is None:
            return
        check_codec("compressor", self.compressor)
        if not load().Codec(self.compressor).keeps_error:
            raise ValueError(
                f"compressor must be a codec with error feedback, which {self.compressor!r} is not"
            )

    @property
    def shortest(self) -> int:
        """The least interval: fragments leave at different steps, and arrive before the next."""
        return max(self.fragments, self.overlap + 1)

    def is_whole(self, name: str) -> bool:
        """Whether the outer gradient of this parameter is never compressed."""
        return self.compressor is None or matches(name, self.full_precision)

    def recipe(self) -> dict[str, Any]:
        """What all ranks, and a checkpoint, must have in common, as plain data."""
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        del values["edges"]
        values["sync_every"] = (
            self.sync_every if isinstance(self.sync_every, int) else describe(self.sync_every)
        )
        return values | {"outer": repr(self.outer), "full_precision": list(self.full_precision)}

    def parameters_of(self, model: nn.Module) -> Named:
        """Those that are trained, by name; raises ValueError unless they can be."""
        parameters: Named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("the model has no parameters that need gradients")
        device = parameters[0][1].device
        for name, p in parameters:
            if p.dtype not in _DTYPES:
                raise ValueError(
                    f"parameter {name!r}: expected float32, bfloat16 or float16, got {p.dtype}"
                )
            is_taken = type(p.data) is Tensor or is_sharded(p)
            if not is_taken or p.device != device:
                raise ValueError(
                    f"parameter {name!r}: expected a plain tensor, or a shard of FSDP2, on "
                    f"{device}, got a {type(p.data).__name__} on {p.device}"
                )
        check_patterns(self.full_precision, parameters, "full_precision")
        if self.fragments > len(parameters):
            raise ValueError(
                f"fragments must be at most the number of parameters, {len(parameters)}, got "
                f"{self.fragments}"
            )
        return parameters
