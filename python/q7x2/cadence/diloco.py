"""``DiLoCo``: ranks train alone for some steps, then all of them take one outer step together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2._core import hook_state
from q7x2._core.agreement import check_agreement
from q7x2._core.ending import Ending
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
from q7x2.cadence.outer import OuterSGD
from q7x2.hooks.runner import part_of
from q7x2.policy.cadence import CadenceFacts, Interval, interval_of


class DiLoCo(Ending):
    """Low-communication training: ``sync_every`` steps of each rank alone, then one outer step.

    An outer gradient is the change of a rank's weights since the last outer step: weights before
    minus weights after. Their mean over the ranks goes to the outer optimizer, which changes
    the weights that all ranks share (DiLoCo, Douillard et al., 2023, arXiv 2311.08105). One class
    covers local SGD, SlowMo, DiLoCo, Streaming DiLoCo and SparseLoCo; docs/cadence.md has a table
    of their options and papers.

    >>> optimizer = q7x2.cadence.DiLoCo(model, torch.optim.AdamW(model.parameters()), sync_every=30)
    >>> loss_of(model(x), y).backward()
    >>> optimizer.step()  # the inner step; every 30th call is followed by the outer one
    >>> optimizer.zero_grad()

    All ranks of the group make it together, and call :meth:`step` equally often. They start with
    the weights of rank 0. It is a ``torch.distributed.checkpoint`` Stateful. Buffers of the model
    stay local.

    Args:
        model: Its parameters are of float32, bfloat16 or float16. Those that need gradients are
            trained. ``fully_shard`` (FSDP2) may have sharded it over other ranks than those of
            ``group``.
        inner: The optimizer of each rank, over the model's parameters.
        sync_every: Steps between two outer steps of a parameter: an int, or an interval such as
            :class:`FollowBandwidth`, called with :class:`CadenceFacts`.
        outer: The outer optimizer.
        compressor: A codec's name, as ``q7x2.all_reduce`` takes it, with error feedback:
            ``"int4"``, or ``"topk:0.025:reselect+int2:minmax:g=64"``. None: float32, over any
            backend.
        residual_decay: What is left of a residual when the next outer gradient is added to it.
        full_precision: Patterns of names of parameters whose outer gradients are never compressed.
        fragments: Parts of the model that take turns within each interval, so that the link is used
            evenly (Streaming DiLoCo).
        overlap: The number of steps that ranks compute while an outer gradient is on the way. Less
            than ``sync_every``.
        blend: The share of the rank's own weights in its weights after an outer step. 0: it takes
            the shared weights, and drops what it has learnt meanwhile. None: 0.5 with overlap, 0
            without.
        inner_state: ``"keep"``: each rank goes on with its inner optimizer's state. ``"average"``:
            tensors of that state, as large as their parameters, are averaged at each outer step, in
            float32; not with overlap.
        edges: Between which ranks messages are compressed, as ``q7x2.all_reduce`` takes it.
        random_seed: The seed of the codec's random numbers.
        group: The default group if None. Of a sharded model: the ranks that hold the same shards,
            one of each replica. All ranks of a replica call everything together.

    Raises:
        ValueError: An option is out of range, ranks have different options or models, a
            compressor is given for a group that has no q7x2 backend, or ``group`` has two ranks of
            a replica.
        TypeError: ``model`` is not a module, ``inner`` is not an optimizer, or ``outer`` is not an
            :class:`OuterSGD`.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: torch.optim.Optimizer,
        *,
        sync_every: int | Interval,
        outer: OuterSGD | None = None,
        compressor: str | None = None,
        residual_decay: float = 1.0,
        full_precision: Sequence[str] = (),
        fragments: int = 1,
        overlap: int = 0,
        blend: float | None = None,
        inner_state: str = "keep",
        edges: str = "auto",
        random_seed: int = 0,
        group: ProcessGroup | None = None,
    ) -> None:
        for name, value, kind in (
            ("model", model, nn.Module),
            ("inner", inner, torch.optim.Optimizer),
        ):
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be of type {kind.__name__}, got {value!r}")
        if blend is None:
            blend = 0.5 if overlap else 0.0
        self._options = DiLoCoOptions(
            sync_every=sync_every,
            outer=OuterSGD() if outer is None else outer,
            compressor=compressor,
            residual_decay=residual_decay,
            full_precision=full_precision,
            random_seed=random_seed,
            fragments=fragments,
            overlap=overlap,
            blend=blend,
            inner_state=inner_state,
            edges=edges,
        )
        parameters = self._options.parameters_of(model)
        self.inner = inner
        self._replica = Replica(parameters)
        self._device = parameters[0][1].device
        self._interval = interval_of("sync_every", sync_every)
        self._position = Position()
        self._clock = Clock()
        with torch.no_grad():
            self._shapes = hook_state.shapes_of((name, local(p)) for name, p in parameters)
            self._fragments = [
                Fragment(index, part, self._options)
                for index, part in enumerate(split(parameters, fragments))
            ]
            self._plan_interval()
            self._meet(group, is_new=True)

    # ---- training -------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take an inner step, and what of an outer step is due after it; a collective call.

        If a message fails, it raises on each rank that is affected. The inner step has been taken
        then, and the outer one has not: weights, momentum and residuals are as before it. After
        :meth:`rebind` the next call tries it again.

        Args:
            closure: Given to the inner optimizer's ``step``.

        Returns:
            What the inner optimizer's ``step`` returns.

        Raises:
            FloatingPointError: An outer gradient has Inf or NaN, on any rank.
            RuntimeError: Ranks are at different steps.
            torch.distributed.DistBackendError: A rank died, or another failure of the group.
        """
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

    def flush(self) -> None:
        """Apply the outer gradients on their way, for example before a validation.

        A collective call. Raises the same as :meth:`step`.
        """
        with torch.no_grad(), self._rolled_back_on_failure():
            for fragment in self._fragments:
                if fragment.flight is not None:
                    self._apply(fragment)
        self._clock.resume()

    def finish(self) -> None:
        """:meth:`flush` at the end of the training. Later inner steps stay local."""
        self.flush()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as the inner optimizer does with ``set_to_none``."""
        self.inner.zero_grad(set_to_none)

    @property
    def steps(self) -> int:
        """Steps so far, those before a loaded state's checkpoint included."""
        return self._position.step

    @property
    def interval(self) -> int:
        """The steps of the current interval."""
        return self._position.interval

    @property
    def shared_weights(self) -> dict[str, Tensor]:
        """Copies of the weights after the last outer step, float32, equal on all ranks, by name.

        Of a sharded model: this rank's shards.
        """
        return cadence_diloco_state.shared_weights(self._fragments)

    @property
    def contributes(self) -> bool:
        """Whether this rank's outer gradients count; False until a rank that joined has one."""
        return all(fragment.contributes for fragment in self._fragments)

    @property
    def residuals(self) -> dict[str, Tensor]:
        """Copies of what this rank has not sent yet, float32, by name; empty without a codec."""
        return cadence_diloco_state.residuals(self._fragments)

    @property
    def stats(self) -> DiLoCoStats:
        """What it has done on this rank since it was made."""
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

    def rebind(self, group: ProcessGroup | None = None) -> None:
        """Go on with another process group: fewer ranks after a failure, or also new ones.

        All ranks of ``group`` call it together; a new one makes its :class:`DiLoCo` over ``group``
        instead. Weights, momentum and residuals go on. Outer gradients on the way are rolled back,
        and sent again after the next step. A rank that is behind takes what it lacks from the one
        that is furthest; a new rank takes the shared weights and trains on, and counts in means
        from its second outer step on.

        Args:
            group: What ``dist.new_group``, ``dist.shrink_group`` or ``q7x2.reconfigure`` has
                returned. None: the default group.

        Raises:
            ValueError: The ranks have different options or models.
        """
        self._roll_back()
        with torch.no_grad():
            self._meet(group, is_new=False)

    def _meet(self, group: ProcessGroup | None, is_new: bool) -> None:
        group = resolve_group(group)
        self._replica.check_apart(group)
        if self._options.compressor is not None:
            backend_of(group, "DiLoCo with a compressor")
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
        """A copy of all that goes on, on this rank; waits for outer gradients on the way.

        Save it on each rank, beside the model's and the inner optimizer's state. ``"shared"`` is
        equal on all ranks, ``"local"`` is this rank's. Loaded on as many ranks, also within an
        interval, training goes on with the bits of one that was not stopped.
        """
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
        """Take over what :meth:`state_dict` gave; load the model and the inner optimizer too.

        Args:
            state: This rank's, or a list with those of all ranks that saved. A list may come from
                another number of ranks: each rank then takes an equal share of the residuals.

        Raises:
            HookStateError: It is of another model, of other options, or of another number of ranks.
                Nothing has changed then.
        """
        whole = dict(state) if isinstance(state, Mapping) else hook_state.merged(state)
        count = len(self._fragments)
        cadence_diloco_state.check(whole, self._options.recipe(), self._shapes, count)
        with torch.no_grad():
            cadence_diloco_state.load(
                whole, self._fragments, self._group.rank(), self._group.size(), self._keys
            )
        self._position = Position(**whole["position"])
