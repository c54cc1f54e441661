"""``QuorumDiLoCo``: DiLoCo whose outer steps wait for no rank in particular."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2._core.agreement import check_agreement
from q7x2._core.extension import load
from q7x2._core.groups import backend_of
from q7x2._core.option_checks import check_flags, check_positive, check_whole
from q7x2._core.state_bytes import decode, encode
from q7x2.cadence.diloco_fragment import Fragment, views
from q7x2.cadence.diloco_options import DiLoCoOptions
from q7x2.cadence.diloco_shards import is_sharded
from q7x2.cadence.outer import OuterSGD
from q7x2.cadence.quorum_outer import OuterBytes
from q7x2.late.quorum_exchange import Exchange
from q7x2.late.quorum_messages import Closed, Contribution, Timing
from q7x2.late.quorum_options import checked


@dataclass(frozen=True)
class QuorumDiLoCoStats:
    """What a :class:`QuorumDiLoCo` has done on this rank since it was made.

    Attributes:
        steps: The number of inner steps.
        counted: The number of outer steps that this rank's outer gradient was part of.
        missed: The number of outer steps that were closed without it, and that this rank followed.
        skipped: The number of outer steps after which this rank took the weights of another one,
            because it was far behind.
        staleness: The number of outer steps in a row in which this rank's outer gradients have not
            counted.
        message_bytes: The bytes of this rank's outer gradients; each is sent to all other ranks.
        waited_seconds: Seconds in which ``step`` waited for the end of an outer step.
    """

    steps: int = 0
    counted: int = 0
    missed: int = 0
    skipped: int = 0
    staleness: int = 0
    message_bytes: int = 0
    waited_seconds: float = 0.0


@dataclass(frozen=True)
class _Leaving:
    """An outer gradient of this rank that has been sent.

    Attributes:
        residual: The fragment's, if the outer gradient counts.
        seconds: The time of one inner step.
    """

    gradient: Tensor
    residual: Tensor | None
    data: Tensor
    seconds: float
    tokens: float


class QuorumDiLoCo:
    """DiLoCo in which an outer step counts the first outer gradients, weighted by tokens.

    An outer step is closed by ``need`` of the n ranks, and ``grace`` seconds later at most. Ranks
    agree as those of :class:`QuorumSGD` do, and share the same weights, bit for bit. A rank that
    was late takes the shared weights. What it has learnt becomes a part of its next outer gradient,
    unless it would be older than ``staleness`` outer steps.

    >>> inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> diloco = q7x2.cadence.QuorumDiLoCo(model, inner, sync_every=30, need=3)
    >>> while diloco.outer_steps < 100:
    ...     loss_of(model(x), y).backward()
    ...     diloco.step(tokens=x.numel())
    ...     diloco.zero_grad()
    >>> diloco.finish()

    All ranks make it together and start with the weights of rank 0. Buffers stay local.

    Args:
        model: A plain module on the CPU, with parameters of float32, bfloat16 or float16.
        inner: The optimizer of each rank, over the model's parameters.
        sync_every: Inner steps between two outer steps.
        need: How many outer gradients close an outer step: more than half of the ranks. None: all
            but one.
        outer: The outer optimizer, without ``divide_by_rate``.
        compressor: A codec's name, with error feedback. None: float32.
        residual_decay: What is left of a residual when the next outer gradient is added to it.
        full_precision: Patterns of names of parameters that are never compressed.
        balance: Slower ranks take fewer inner steps per outer step, so that all arrive together:
            ``sync_every`` times the time of a step on the fastest rank, divided by their own.
        grace: Seconds that an outer step waits for further ranks once it has enough.
        takeover: Seconds that the ranks wait for the one that closes the step, if it is stopped.
        staleness: The largest number of outer steps by which a rank's progress may be late and
            still count. 0: late progress is dropped.
        random_seed: The seed of the codec's random numbers.
        timeout: After how long an outer step that cannot be closed raises; a float means seconds.
            None: the group's.
        state: The result of this rank's :meth:`state_dict`, to resume. None: start a new training.
        group: A q7x2 group with 3 to 62 ranks; the default group if None.

    Raises:
        ValueError: An option is out of range, the group is too small, or ranks have different
            options or models.
        TypeError: ``model`` is not a module, ``inner`` is not an optimizer, or ``outer`` is not an
            :class:`OuterSGD`.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: torch.optim.Optimizer,
        *,
        sync_every: int,
        need: int | None = None,
        outer: OuterSGD | None = None,
        compressor: str | None = None,
        residual_decay: float = 1.0,
        full_precision: Sequence[str] = (),
        balance: bool = False,
        grace: float = 1.0,
        takeover: float = 1.0,
        staleness: int = 1,
        random_seed: int = 0,
        timeout: timedelta | float | None = None,
        state: Mapping[str, Any] | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be of type Module, got {model!r}")
        if not isinstance(inner, torch.optim.Optimizer):
            raise TypeError(f"inner must be of type Optimizer, got {inner!r}")
        check_whole("sync_every", sync_every, 1)
        check_flags(balance=balance)
        check_whole("staleness", staleness, 0)
        outer = OuterSGD() if outer is None else outer
        options = DiLoCoOptions(
            sync_every=sync_every,
            outer=outer,
            compressor=compressor,
            residual_decay=residual_decay,
            full_precision=full_precision,
            random_seed=random_seed,
        )
        if outer.divide_by_rate:
            raise ValueError("divide_by_rate needs the rates of all ranks: use q7x2.cadence.DiLoCo")
        if compressor is not None and not load().Codec(compressor).has_messages:
            raise ValueError(f"compressor: {compressor!r} cannot encode the data of one rank alone")
        parameters = options.parameters_of(model)
        if parameters[0][1].device.type != "cpu":
            raise ValueError(f"expected parameters on the CPU, got {parameters[0][1].device}")
        if any(is_sharded(p) for _, p in parameters):
            raise ValueError(
                "expected plain parameters, got shards: q7x2.cadence.DiLoCo takes those"
            )
        group = dist.group.WORLD if group is None else group
        backend = backend_of(group, "QuorumDiLoCo")
        assert group is not None
        enough, timing = checked(need, grace, takeover, timeout, backend)
        shapes = [(name, tuple(p.shape), p.dtype) for name, p in parameters]
        facts = options.recipe() | {
            "need": enough,
            "staleness": staleness,
            "parameters": shapes,
        }
        step = 0 if state is None else int(state["outer_steps"])
        check_agreement("QuorumDiLoCo", facts | {"outer_steps": step}, group)
        self.inner, self._rank, self._outer, self._balance = inner, group.rank(), outer, balance
        self._most_staleness = staleness
        self._sync_every = self._interval = sync_every
        self._decay = residual_decay
        self._steps, self._tokens, self._computed = 0, 0.0, 0.0
        self._leaving: _Leaving | None = None
        self._stats, self._since = QuorumDiLoCoStats(), time.monotonic()
        with torch.no_grad():
            self._fragment = fragment = Fragment(0, parameters, options)
            if state is not None:
                self._restore(state)
            shared = [t for t in (fragment.weights, fragment.momentum) if t is not None]
            for tensor in shared:
                dist.broadcast(tensor, group=group, group_src=0)
            fragment.write_parameters(0.0)
        coded = sum(p.numel() for _, p in fragment.coded)
        self._bytes = OuterBytes(compressor, coded, fragment.weights.numel(), random_seed)
        self._exchange = Exchange(
            group,
            self._bytes.lengths,
            lambda mask: mask.bit_count() >= enough,
            lambda: encode((fragment.weights, fragment.momentum)),
            timing,
            step,
        )

    @property
    def outer_steps(self) -> int:
        """Outer steps so far; it grows by more than 1 at once on a rank that was far behind."""
        return self._exchange.step

    @property
    def interval(self) -> int:
        """Inner steps of this rank's current interval."""
        return self._interval

    @property
    def timing(self) -> Timing:
        """How long this rank waits. Its seconds may be changed between two calls of ``step``."""
        return self._exchange.timing

    @property
    def stats(self) -> QuorumDiLoCoStats:
        """What it has done on this rank since it was made."""
        return self._stats

    def step(self, closure: Callable[[], Any] | None = None, *, tokens: float = 1.0) -> Any:
        """Take an inner step, and the outer one if it is due.

        Args:
            closure: Given to the inner optimizer's ``step``.
            tokens: The weight of this step in the mean of the outer gradients.

        Returns:
            What the inner optimizer's ``step`` returns.

        Raises:
            FloatingPointError: The mean has Inf or NaN, on all ranks alike. The outer step is over,
                and all ranks have the shared weights of before.
            TimeoutError: Too few ranks came within the timeout. The next call tries it again.
            torch.distributed.DistBackendError: A rank died, or another failure of the group.
        """
        check_positive("tokens", tokens)
        loss = self.inner.step(closure)
        self._computed += time.monotonic() - self._since
        self._steps += 1
        self._tokens += tokens
        self._stats = replace(self._stats, steps=self._stats.steps + 1)
        if self._steps >= self._interval:
            with torch.no_grad():
                self._outer_step()
        self._since = time.monotonic()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as the inner optimizer does with ``set_to_none``."""
        self.inner.zero_grad(set_to_none)

    def finish(self) -> None:
        """Wait for all ranks at the end of the training; helps those that are behind.

        Every rank calls it after its last outer step; then all have the same weights.
        """
        self._exchange.finish()

    def state_dict(self) -> dict[str, Any]:
        """A copy of what goes on after an outer step, on this rank: save it right after one.

        Shared weights and momentum are equal on all ranks; a training goes on with those of rank 0.
        """
        fragment = self._fragment
        tensors = {
            "weights": fragment.weights,
            "momentum": fragment.momentum,
            "residual": fragment.residual,
        }
        copies = {name: None if t is None else t.clone() for name, t in tensors.items()}
        return {"outer_steps": self.outer_steps, **copies}

    def _restore(self, state: Mapping[str, Any]) -> None:
        for name in ("weights", "momentum", "residual"):
            mine, saved = getattr(self._fragment, name), state[name]
            if (mine is None) != (saved is None) or (
                mine is not None and mine.shape != saved.shape
            ):
                raise ValueError(f"the state is of another QuorumDiLoCo: its {name} does not fit")
            if mine is not None:
                mine.copy_(saved)

    def _outer_step(self) -> None:
        fragment, begin, before = self._fragment, time.monotonic(), self.outer_steps
        if self._leaving is None:
            self._leaving = self._leave(before)
        mine = self._leaving  # of the call that timed out, if there was one
        closed = self._exchange.close(Contribution(mine.data, mine.tokens))
        self._leaving = None
        self._steps, self._tokens, self._computed = 0, 0.0, 0.0
        counts = bool(closed.mask >> self._rank & 1)
        passed, s = self.outer_steps - before, self._stats
        late = 0 if counts else s.staleness + passed
        self._stats = replace(
            s,
            counted=s.counted + counts,
            missed=s.missed + (not counts and closed.state is None),
            skipped=s.skipped + (0 if closed.state is None else passed),
            staleness=late,
            message_bytes=s.message_bytes + mine.data.numel(),
            waited_seconds=s.waited_seconds + time.monotonic() - begin,
        )
        if closed.state is not None:
            self._load(closed.state)
        else:
            if counts:
                fragment.residual = mine.residual
            self._apply(closed, before, mine.seconds)
            if not counts and late <= self._most_staleness:
                self._rebase(mine.gradient)
                self._tokens = mine.tokens
        if not counts:
            # Early at the next outer step, so that this rank counts again.
            self._interval = max(1, self._interval // 2)

    def _leave(self, step: int) -> _Leaving:
        fragment = self._fragment
        gradient = torch.empty_like(fragment.weights)
        fragment.write_difference(gradient)
        residual = None if fragment.residual is None else fragment.residual * self._decay
        seconds = self._computed / self._steps
        data = self._bytes.write(gradient, residual, seconds, step, self._rank)
        return _Leaving(gradient, residual, data, seconds, self._tokens)

    def _apply(self, closed: Closed, step: int, seconds: float) -> None:
        fragment = self._fragment
        mean = torch.zeros_like(fragment.weights)
        total = sum(each.weight for each in closed.contributions.values())
        fastest = seconds
        for each in closed.contributions.values():
            values, its_seconds = self._bytes.read(each.data, step)
            mean.add_(values, alpha=each.weight / total)
            fastest = min(fastest, its_seconds)
        is_finite = bool(torch.isfinite(mean).all())
        if is_finite:
            self._outer.apply(fragment.weights, mean, fragment.momentum, inner_rate=1.0)
        fragment.write_parameters(0.0)
        self._exchange.serve()
        share = fastest / seconds if self._balance and seconds > 0 else 1.0
        self._interval = min(self._sync_every, max(1, round(self._sync_every * share)))
        if not is_finite:
            if fragment.residual is not None:
                fragment.residual.zero_()
            raise FloatingPointError(
                f"outer gradient {step} has Inf or NaN on some rank; the outer step is not taken"
            )

    def _rebase(self, gradient: Tensor) -> None:
        """The parameters become the shared weights less this rank's outer gradient."""
        moved = views(gradient, self._fragment.parameters)
        for name, p in self._fragment.parameters:
            p.sub_(moved[name].to(p.dtype))

    def _load(self, state: Tensor) -> None:
        fragment = self._fragment
        weights, momentum = decode(state)
        fragment.weights.copy_(weights)
        if fragment.momentum is not None:
            fragment.momentum.copy_(momentum)
        if fragment.residual is not None:
            fragment.residual.zero_()
        fragment.write_parameters(0.0)
