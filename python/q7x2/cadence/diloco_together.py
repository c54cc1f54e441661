"""``Together``: outer steps of DiLoCo that all ranks take together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2._core import hook_state
from q7x2._core.agreement import check_agreement
from q7x2._core.exchange import gather
from q7x2._core.groups import backend_of, resolve_group
from q7x2._core.option_checks import check_whole
from q7x2.cadence import diloco_members as members
from q7x2.cadence import diloco_state as cadence_diloco_state
from q7x2.cadence.diloco_clock import Clock, DiLoCoStats
from q7x2.cadence.diloco_fragment import Flight, Fragment, split
from q7x2.cadence.diloco_members import Member, Position
from q7x2.cadence.diloco_options import DiLoCoOptions
from q7x2.cadence.diloco_reports import Report, check_alike
from q7x2.cadence.diloco_shards import Replica, local
from q7x2.hooks.runner import part_of
from q7x2.late.quorum_messages import Timing
from q7x2.policy.cadence import CadenceFacts, interval_of


class Together:
    """The training of a :class:`DiLoCo` whose outer steps wait for all ranks.

    Args:
        model: What is trained.
        inner: The optimizer of this rank.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: torch.optim.Optimizer,
        options: DiLoCoOptions,
        group: ProcessGroup | None,
    ) -> None:
        self._options = options
        parameters = self._options.parameters_of(model)
        self.inner = inner
        self._replica = Replica(parameters)
        self._device = parameters[0][1].device
        self._interval = interval_of("sync_every", options.sync_every)
        self._position = Position()
        self._clock = Clock()
        with torch.no_grad():
            self._shapes = hook_state.shapes_of((name, local(p)) for name, p in parameters)
            self._fragments = [
                Fragment(index, part, self._options)
                for index, part in enumerate(split(parameters, options.fragments))
            ]
            self._plan_interval()
            self._meet(group, is_new=True)

    # ---- training -------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None, tokens: float | None) -> Any:
        if tokens is not None:
            raise ValueError("tokens weighs outer gradients by a quorum only: DiLoCo(quorum=...)")
        loss = self.inner.step(closure)
        self._position.step += 1
        self._clock.computed()
        with torch.no_grad(), self._rolled_back_on_failure():
            for fragment in self._fragments:
                if fragment.flight is not None and fragment.flight.arrives <= self.steps:
                    self._apply(fragment)
            for fragment in self._fragments:
                if fragment.due is not None and fragment.due <= self.steps:
                    self._send(fragment)
                    if not self._options.overlap:
                        self._apply(fragment)
            if all(fragment.due is None for fragment in self._fragments):
                self._plan_interval()
        self._clock.resume()
        return loss

    def finish(self) -> None:
        self.flush()

    def flush(self) -> None:
        with torch.no_grad(), self._rolled_back_on_failure():
            for fragment in self._fragments:
                if fragment.flight is not None:
                    self._apply(fragment)
        self._clock.resume()

    @property
    def steps(self) -> int:
        return self._position.step

    @property
    def outer_steps(self) -> int:
        return min(fragment.version for fragment in self._fragments)

    @property
    def timing(self) -> Timing:
        raise RuntimeError("timing is that of a quorum: DiLoCo(quorum=...)")

    @property
    def interval(self) -> int:
        return self._position.interval

    @property
    def shared_weights(self) -> dict[str, Tensor]:
        return cadence_diloco_state.shared_weights(self._fragments)

    @property
    def contributes(self) -> bool:
        return all(fragment.contributes for fragment in self._fragments)

    @property
    def residuals(self) -> dict[str, Tensor]:
        return cadence_diloco_state.residuals(self._fragments)

    @property
    def stats(self) -> DiLoCoStats:
        return self._clock.stats()

    def _plan_interval(self) -> None:
        """Fragment j of k leaves when j + 1 k-ths of the interval are over."""
        p = self._position
        interval = self._interval(CadenceFacts(p.step, p.step_seconds, p.wire_seconds))
        check_whole("the interval that sync_every returns", interval, 1)
        p.interval = max(interval, self._options.shortest)
        count = len(self._fragments)
        for fragment in self._fragments:
            fragment.due = p.step + (fragment.index + 1) * p.interval // count

    def _send(self, fragment: Fragment) -> None:
        p = self._position
        if all(each.due is None for each in self._fragments if each is not fragment):
            self._clock.close_interval()
        report = Report.at(
            fragment.contributes,
            p.step,
            p.interval,
            float(self.inner.param_groups[0]["lr"]),
            self._clock.step_seconds,
            self._clock.wire_seconds,
        )
        state = self._inner_state(fragment)
        fragment.start(self._group, report, state, p.step + self._options.overlap)
        fragment.due = None
        self._clock.sent(fragment)

    def _apply(self, fragment: Fragment) -> None:
        flight, size = fragment.flight, self._group.size()
        assert flight is not None

        def arrived() -> tuple[float, float]:
            flight.land()
            everybody = fragment.reports(size)
            check_alike(everybody)
            fragment.check_finite(size)
            timed = [report for report in everybody if report.step_seconds > 0]
            if not timed:
                return 0.0, 0.0
            step_seconds = max(report.step_seconds for report in timed)
            return step_seconds, -min(report.wire_seconds for report in timed)

        with self._clock.waiting():
            step_seconds, minus_wire_seconds = self._replica.together(arrived)
        everybody = fragment.reports(size)
        rate = sum(report.rate for report in everybody) / len(everybody)
        contributors = sum(report.contributes > 0 for report in everybody)
        fragment.apply(contributors, rate, self._inner_state(fragment), self._options.blend)
        self._clock.applied(flight.trip)
        if step_seconds > 0:
            self._position.step_seconds = step_seconds
            self._position.wire_seconds = -minus_wire_seconds

    def _land(self, flight: Flight) -> None:
        def landed() -> tuple[()]:
            flight.land()
            return ()

        self._replica.together(landed)

    def _inner_state(self, fragment: Fragment) -> list[Tensor]:
        """What of the inner optimizer's state is averaged with the fragment."""
        if self._options.inner_state != "average":
            return []
        return [
            local(value)
            for _, p in fragment.parameters
            for _, value in sorted(self.inner.state.get(p, {}).items())
            if isinstance(value, Tensor) and value.shape == p.shape and value.is_floating_point()
        ]

    @contextmanager
    def _rolled_back_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._roll_back()
            self._clock.resume()
            raise

    def _roll_back(self) -> None:
        for fragment in self._fragments:
            if fragment.flight is not None:
                self._clock.rolled_back()
                fragment.roll_back(self.steps)

    # ---- members --------------------------------------------------------------------------------

    def rebind(self, group: ProcessGroup | None) -> None:
        self._roll_back()
        with torch.no_grad():
            self._meet(group, is_new=False)

    def _meet(self, group: ProcessGroup | None, is_new: bool) -> None:
        group = resolve_group(group)
        self._replica.check_apart(group)
        if self._options.codec is not None:
            backend_of(group, "DiLoCo with a codec")
        shapes = {f"parameter {name}": shape for name, shape in self._shapes.items()}
        facts = self._options.recipe() | shapes
        check_agreement("DiLoCo of the same model", facts, group, device=self._device)
        mine = Member(
            is_new,
            self._position,
            [fragment.version for fragment in self._fragments],
            [fragment.due for fragment in self._fragments],
        )
        everybody = gather(mine, Member, group, self._device)
        self._position = members.catch_up(group, everybody, self._fragments)
        self._group = group
        try:
            self._keys = hook_state.Keys(part_of(group))
        except KeyError:  # not registered with torch.distributed, so it is the whole job
            self._keys = hook_state.Keys()

    # ---- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        with self._rolled_back_on_failure():
            for fragment in self._fragments:
                if fragment.flight is not None:
                    self._land(fragment.flight)
        keys = self._keys
        return {
            "format": cadence_diloco_state.FORMAT,
            "version": cadence_diloco_state.VERSION,
            "hook": cadence_diloco_state.HOOK,
            "recipe": self._options.recipe(),
            "world_size": self._group.size(),
            "step": self.steps,
            "shapes": dict(self._shapes),
            "position": vars(self._position).copy(),
            "fragments": [cadence_diloco_state.facts_of(fragment) for fragment in self._fragments],
            "shared": keys.add(
                cadence_diloco_state.shared_tensors(self._fragments, self._group.size())
            ),
            "local": {
                keys.of_rank(self._group.rank()): cadence_diloco_state.local_tensors(
                    self._fragments
                )
            },
        }

    def load_state_dict(self, state: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        whole = dict(state) if isinstance(state, Mapping) else hook_state.merged(state)
        count = len(self._fragments)
        cadence_diloco_state.check(whole, self._options.recipe(), self._shapes, count)
        with torch.no_grad():
            cadence_diloco_state.load(
                whole, self._fragments, self._group.rank(), self._group.size(), self._keys
            )
        self._position = Position(**whole["position"])
