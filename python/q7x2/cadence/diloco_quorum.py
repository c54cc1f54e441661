"""``ByQuorum``: outer steps of DiLoCo that wait for no rank in particular."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2._core.agreement import check_agreement
from q7x2._core.groups import backend_of
from q7x2._core.hook_state import HookStateError
from q7x2._core.option_checks import check_positive
from q7x2._core.state_bytes import decode, encode
from q7x2.cadence import diloco_state
from q7x2.cadence.diloco_clock import DiLoCoStats
from q7x2.cadence.diloco_fragment import Fragment, views
from q7x2.cadence.diloco_options import DiLoCoOptions, QuorumOptions
from q7x2.cadence.diloco_shards import is_sharded
from q7x2.cadence.quorum_outer import OuterBytes
from q7x2.late.quorum_exchange import Exchange
from q7x2.late.quorum_messages import Closed, Contribution, Timing
from q7x2.late.quorum_options import checked


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


class ByQuorum:
    """The training of a :class:`DiLoCo` whose outer steps count the first outer gradients.

    Args:
        model: What is trained.
        inner: The optimizer of this rank.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: torch.optim.Optimizer,
        options: DiLoCoOptions,
        quorum: QuorumOptions,
        group: ProcessGroup | None,
    ) -> None:
        options.check_goes_with_quorum()
        assert isinstance(options.sync_every, int)
        parameters = options.parameters_of(model)
        if parameters[0][1].device.type != "cpu":
            raise ValueError(f"a quorum needs parameters on the CPU, got {parameters[0][1].device}")
        if any(is_sharded(p) for _, p in parameters):
            raise ValueError("a quorum needs plain parameters, got shards of FSDP2")
        group = dist.group.WORLD if group is None else group
        backend = backend_of(group, "DiLoCo with a quorum")
        assert group is not None
        need, timing = checked(quorum.need, quorum.grace, quorum.takeover, quorum.timeout, backend)
        shapes = [(name, tuple(p.shape), p.dtype) for name, p in parameters]
        facts = options.recipe() | {
            "need": need,
            "staleness": quorum.staleness,
            "parameters": shapes,
        }
        check_agreement("DiLoCo", facts, group)
        self._group = group
        self.inner, self._rank, self._outer = inner, group.rank(), options.outer
        self._balance = quorum.balance
        self._most_staleness = quorum.staleness
        self._sync_every = self._interval = options.sync_every
        self._decay = options.residual_decay
        self._steps, self._tokens, self._computed = 0, 0.0, 0.0
        self._leaving: _Leaving | None = None
        self._stats, self._since = DiLoCoStats(), time.monotonic()
        with torch.no_grad():
            self._fragment = fragment = Fragment(0, parameters, options)
            self._share()
        coded = sum(p.numel() for _, p in fragment.coded)
        self._bytes = OuterBytes(
            options.codec, coded, fragment.weights.numel(), options.random_seed
        )
        self._exchange = Exchange(
            group,
            self._bytes.lengths,
            lambda mask: mask.bit_count() >= need,
            lambda: encode((fragment.weights, fragment.momentum)),
            timing,
        )

    @property
    def steps(self) -> int:
        return self._stats.steps

    @property
    def outer_steps(self) -> int:
        return self._exchange.step

    @property
    def interval(self) -> int:
        return self._interval

    @property
    def timing(self) -> Timing:
        return self._exchange.timing

    @property
    def shared_weights(self) -> dict[str, Tensor]:
        return diloco_state.shared_weights([self._fragment])

    @property
    def residuals(self) -> dict[str, Tensor]:
        return diloco_state.residuals([self._fragment])

    @property
    def contributes(self) -> bool:
        return True

    @property
    def stats(self) -> DiLoCoStats:
        return self._stats

    def step(self, closure: Callable[[], Any] | None, tokens: float | None) -> Any:
        tokens = 1.0 if tokens is None else tokens
        check_positive("tokens", tokens)
        loss = self.inner.step(closure)
        seconds = time.monotonic() - self._since
        self._computed += seconds
        self._steps += 1
        self._tokens += tokens
        self._stats = replace(
            self._stats,
            steps=self._stats.steps + 1,
            compute_seconds=self._stats.compute_seconds + seconds,
        )
        if self._steps >= self._interval:
            with torch.no_grad():
                self._outer_step()
        self._since = time.monotonic()
        return loss

    def flush(self) -> None:
        pass  # a step returns when its outer step is over

    def finish(self) -> None:
        self._exchange.finish()

    def state_dict(self) -> dict[str, Any]:
        fragment = self._fragment
        tensors = {
            "weights": fragment.weights,
            "momentum": fragment.momentum,
            "residual": fragment.residual,
        }
        copies = {name: None if t is None else t.clone() for name, t in tensors.items()}
        return {"outer_steps": self.outer_steps, **copies}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        problem: Exception | None = None
        steps: Any = None
        try:
            if not isinstance(state, Mapping):
                raise HookStateError("a DiLoCo with a quorum takes the state of this rank alone")
            self._check_fits(state)
            steps = state["outer_steps"]
        except HookStateError as error:
            problem = error
        check_agreement("DiLoCo's state", {"outer_steps": steps}, self._group, problem)
        if problem is not None:
            raise problem
        assert isinstance(state, Mapping)
        self._exchange.resume(int(steps))
        for name in ("weights", "momentum", "residual"):
            if state[name] is not None:
                getattr(self._fragment, name).copy_(state[name])
        self._share()

    def _share(self) -> None:
        """All ranks take the weights and the momentum of rank 0."""
        fragment = self._fragment
        for tensor in (fragment.weights, fragment.momentum):
            if tensor is not None:
                dist.broadcast(tensor, group=self._group, group_src=0)
        fragment.write_parameters(0.0)

    def rebind(self, group: ProcessGroup | None) -> None:
        raise RuntimeError(
            "a quorum stays with its group: make a new DiLoCo(quorum=...) over the other one, and "
            "give it state_dict() of this one"
        )

    def _check_fits(self, state: Mapping[str, Any]) -> None:
        if "outer_steps" not in state:
            raise HookStateError(
                "expected the state of a DiLoCo with a quorum, got that of something else"
            )
        for name in ("weights", "momentum", "residual"):
            mine, saved = getattr(self._fragment, name), state[name]
            if (mine is None) != (saved is None) or (
                mine is not None and mine.shape != saved.shape
            ):
                raise HookStateError(f"the state is of another DiLoCo: its {name} does not fit")

    def _outer_step(self) -> None:
        fragment, begin, before = self._fragment, time.monotonic(), self.outer_steps
        if self._leaving is None:
            self._leaving = self._leave(before)
        mine = self._leaving  # that of the call that timed out, if there was one
        closed = self._exchange.close(Contribution(mine.data, mine.tokens))
        self._leaving = None
        self._steps, self._tokens, self._computed = 0, 0.0, 0.0
        counts = bool(closed.mask >> self._rank & 1)
        passed, s = self.outer_steps - before, self._stats
        late = 0 if counts else s.staleness + passed
        self._stats = replace(
            s,
            outer_steps=s.outer_steps + passed,
            counted=s.counted + counts,
            missed=s.missed + (not counts and closed.state is None),
            skipped=s.skipped + (0 if closed.state is None else passed),
            staleness=late,
            signal_bytes=s.signal_bytes + 4 * mine.gradient.numel(),
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
