"""What a :class:`DiLoCo` is asked for, checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from q7x2._core.option_checks import (
    check_codec,
    check_edges,
    check_factor,
    check_flags,
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
class QuorumOptions:
    """Outer steps of a :class:`DiLoCo` that wait for no rank in particular.

    An outer step is closed by ``need`` of the n ranks, and ``grace`` seconds later at most. Ranks
    agree as those of :class:`q7x2.late.QuorumSGD` do, and share the same weights, bit for bit. A
    rank that was late takes the shared weights. What it has learnt becomes a part of its next outer
    gradient, unless it would be older than ``staleness`` outer steps.

    >>> quorum = q7x2.cadence.QuorumOptions(need=3, grace=2.0)
    >>> diloco = q7x2.cadence.DiLoCo(model, inner, sync_every=30, quorum=quorum)
    >>> while diloco.outer_steps < 100:
    ...     loss_of(model(x), y).backward()
    ...     diloco.step(tokens=x.numel())
    ...     diloco.zero_grad()
    >>> diloco.finish()

    The model must be a plain module on the CPU, ``sync_every`` an int, and ``fragments``,
    ``overlap``, ``blend``, ``inner_state`` and ``edges`` are left at their defaults.

    Args:
        need: How many outer gradients close an outer step: more than half of the ranks. None: all
            but one.
        grace: Seconds that an outer step waits for further ranks once it has enough.
        takeover: Seconds that the ranks wait for the one that closes the step, if it is stopped.
        staleness: The largest number of outer steps by which a rank's progress may be late and
            still count. 0: late progress is dropped.
        balance: Slower ranks take fewer inner steps per outer step, so that all arrive together:
            ``sync_every`` times the time of a step on the fastest rank, divided by their own.
        timeout: After how long an outer step that cannot be closed raises; a float means seconds.
            None: the group's.

    Raises:
        ValueError: An option is out of range; from :class:`DiLoCo`, the group is too small, or
            another option or the model does not go with a quorum.
    """

    need: int | None = None
    grace: float = 1.0
    takeover: float = 1.0
    staleness: int = 1
    balance: bool = False
    timeout: timedelta | float | None = None

    def __post_init__(self) -> None:
        check_flags(balance=self.balance)
        check_whole("staleness", self.staleness, 0)


@dataclass(frozen=True, kw_only=True)
class DiLoCoOptions:
    """See :class:`DiLoCo`, which has the same arguments."""

    sync_every: int | Interval
    outer: OuterSGD
    codec: str | None
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
        self._check_codec()
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

    def _check_codec(self) -> None:
        from q7x2._core.extension import load

        if self.codec is None:
            return
        check_codec("codec", self.codec)
        if not load().Codec(self.codec).keeps_error:
            raise ValueError(
                f"codec: expected one with error feedback, which {self.codec!r} is not"
            )

    def check_goes_with_quorum(self) -> None:
        """Raise ValueError for an option that needs all ranks."""
        from q7x2._core.extension import load

        check_whole("sync_every with a quorum", self.sync_every, 1)
        for name, default in (
            ("fragments", 1),
            ("overlap", 0),
            ("blend", 0.0),
            ("inner_state", "keep"),
            ("edges", "auto"),
        ):
            if getattr(self, name) != default:
                raise ValueError(
                    f"{name} needs outer steps of all ranks: with a quorum it must be {default!r}, "
                    f"got {getattr(self, name)!r}"
                )
        if self.outer.divide_by_rate:
            raise ValueError("divide_by_rate needs the rates of all ranks: not with a quorum")
        if self.codec is not None and not load().Codec(self.codec).has_messages:
            raise ValueError(
                f"codec: {self.codec!r} cannot encode the data of one rank alone, which "
                "a quorum needs"
            )

    @property
    def shortest(self) -> int:
        """The least interval: fragments leave at different steps, and arrive before the next."""
        return max(self.fragments, self.overlap + 1)

    def is_whole(self, name: str) -> bool:
        """Whether the outer gradient of this parameter is never compressed."""
        return self.codec is None or matches(name, self.full_precision)

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
