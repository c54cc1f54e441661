"""``Attached``: a hook at work on one model, its figures and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from q7x2._core import hook_state
from q7x2._core.hook_state import HookStateError as HookStateError
from q7x2._core.renamed import renamed_attributes
from q7x2.hooks.residuals import MeasuredRunner
from q7x2.hooks.runner import (
    check_has_no_hook,
    make_runner,
    part_of,
    place_in,
    reduced_parameters,
    register,
)
from q7x2.policy.driver import PolicyDriver, snapshots_in
from q7x2.policy.obeys_policies import ObeysPolicies

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from q7x2._C import HookRunner
    from q7x2._core.runner import HookTensors, Runner
    from q7x2.hooks.options import HookOptions


@dataclass(frozen=True)
class HookStats:
    """What a hook has done on this rank since it was attached.

    Attributes:
        steps: The number of backwards whose gradients were reduced.
        skipped_steps: How many of these had Inf or NaN. They did not change the state.
        buckets: The number of buckets that DDP has handed over.
        gradient_bytes: The bytes of the gradients in these buckets.
        message_bytes: The bytes that went into all-reduces instead; for selections an estimate. On
            the wire each rank sends and receives 2 (n - 1) / n times as many. With a selection it
            is up to n times as many, because a sum has every element that any rank has selected.
        cpu_seconds: CPU seconds of the hook's own thread, by phase.
    """

    steps: int
    skipped_steps: int
    buckets: int
    gradient_bytes: int
    message_bytes: int
    cpu_seconds: dict[str, float]


@dataclass(frozen=True)
class HookEvent:
    """A phase of a bucket's reduction, or one of its collectives, on this rank.

    Attributes:
        step: The number of reductions before this one.
        bucket: The index of DDP's bucket.
        name: The name of the phase, or ``"collective"``.
        lane: The index of the process group that a collective used; 0 for a phase.
        begin: When it began, in seconds of ``time.monotonic()``.
        end: When it ended, in seconds of ``time.monotonic()``.
    """

    step: int
    bucket: int
    name: str
    lane: int
    begin: float
    end: float


@renamed_attributes(step="steps")
class Attached(ObeysPolicies):
    """A hook at work on one model; made by :func:`attach`.

    It is a ``torch.distributed.checkpoint`` Stateful. State can be read and changed between steps
    only; within one, its methods raise RuntimeError.
    """

    def __init__(
        self,
        runner: Runner,
        options: HookOptions,
        parameters: list[tuple[str, torch.Tensor]],
        *,
        rank: int,
        world_size: int,
        scaler: Any = None,
        part: str | None = None,
        threads: int = 1,
    ) -> None:
        self.options = options
        self._threads = threads
        self._runner = runner
        self._shapes = hook_state.shapes_of(parameters)
        self._rank, self._world_size = rank, world_size
        self._keys = hook_state.Keys(part)
        self._scaler = scaler
        self._loss_scale: float = scaler.get_scale() if scaler is not None else 1.0
        self._removable: list[Any] = []
        self._calls: list[Callable[[], object]] = []  # before each forward
        self._is_detached = False
        self._optimizer: torch.optim.Optimizer | None = None
        self._rate: float | None = None  # that residuals are to be applied at

    @property
    def stats(self) -> HookStats:
        """What the hook has done on this rank since it was attached."""
        return HookStats(**self._runner.stats())

    @property
    def number(self) -> int:
        """The number of this hook in :func:`q7x2.stats`, in metrics and in the ledger."""
        if not isinstance(self._runner, MeasuredRunner):
            raise AttributeError("only the hook of a DistributedDataParallel has a number")
        return self._runner.number

    @property
    def steps(self) -> int:
        """Reductions so far, those before a loaded state's checkpoint included."""
        return self._runner.step

    def trace(self, enabled: bool = True) -> None:
        """Record from now on what :meth:`take_events` returns, or stop.

        Args:
            enabled: False stops. Nothing is recorded until the first call.
        """
        self._runner.trace(enabled)

    def take_events(self) -> list[HookEvent]:
        """Return the events that were recorded since the last call, and forget them."""
        return [HookEvent(**event) for event in self._runner.take_events()]

    def scale_changed(self, old: float, new: float) -> None:
        """The loss scale went from ``old`` to ``new``: residuals follow it.

        A scaler given to :func:`attach` is followed without this.

        Raises:
            ValueError: A scale is not positive.
        """
        if not (old > 0 and new > 0):
            raise ValueError(f"loss scales must be positive, got {old} and {new}")
        if new != old:
            self._runner.rescale(new / old)
        self._loss_scale = self._loss_scale * new / old

    def set_momentum(self, momentum: Mapping[str, torch.Tensor]) -> None:
        """Replace the momentum that the hook sends: an optimizer has seen clipped gradients.

        All ranks call it between the same steps, with equal values.

        Args:
            momentum: By the name of the parameter, of the gradients without a loss scale.
                Parameters that are left out keep theirs. Those that the hook does not reduce are
                ignored.

        Raises:
            ValueError: The hook has no momentum that all ranks share.
        """
        shared, local, step = self._runner.save()
        if "momentum" not in shared:
            raise ValueError(f"{self.options!r} has no momentum that all ranks share")
        kept = shared["momentum"]
        for name in kept.keys() & momentum.keys():
            kept[name] = momentum[name].float() * self._loss_scale
        self._runner.load(shared, local, step)

    def detach(self) -> None:
        """Reduce gradients as DDP does without a hook from now on, and drop the state.

        DDP itself cannot be rid of a hook: it stays registered.
        """
        self._runner.detach()
        self._is_detached = True
        for each in self._removable:
            each.remove()
        self._removable.clear()
        self._calls.clear()

    def rebind(self, ddp: DistributedDataParallel) -> None:
        """Reduce the gradients of ``ddp`` from now on: the same model over another process group.

        After a failed collective the hook is as it was before the step, but its process groups
        cannot be used again. Make a group of the ranks that are left, a DistributedDataParallel
        over it, and give it to this method on all of them. What they keep for each parameter goes
        on; what a rank that is gone kept is lost.

        Raises:
            ValueError: The ranks do not go on from the same step, or have different hooks.
            RuntimeError: ``ddp`` has a hook already.
        """
        check_has_no_hook(ddp)
        shared, local, step = self._runner.save()
        parameters = reduced_parameters(ddp)
        if hook_state.shapes_of(parameters) != self._shapes:
            raise ValueError("rebind needs the same model: names or shapes of parameters differ")
        made = make_runner(
            self.options,
            ddp.process_group,
            parameters,
            threads=self._threads,
            may_skip=self._scaler is not None,
            step=step,
        )
        place = place_in(ddp.process_group)
        runner: HookRunner | MeasuredRunner = made
        if isinstance(self._runner, MeasuredRunner):
            runner = self._runner.moved_to(made, is_first=place[0] == 0)
        local = hook_state.without_lost_ranks(local)
        if self._driver is not None:
            self._driver.start(runner, step)
        self._model = ddp
        runner.load(shared, local, step)
        register(ddp, runner, self.options)
        self._move(ddp, runner, place, part_of(ddp.process_group))

    def _move(
        self, model: torch.nn.Module, runner: Runner, place: tuple[int, int], part: str | None
    ) -> None:
        """Leave the model so far, and be at work on ``model`` with ``runner``.

        Args:
            place: This rank's number among those that reduce the model, and how many they are.
            part: The part of the job, in the keys of state.
        """
        calls = list(self._calls)
        self.detach()
        self._runner, self._is_detached = runner, False
        self._rank, self._world_size = place
        self._keys = hook_state.Keys(part)
        for call in calls:
            self._before_forward(model, call)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the hook's state: what all ranks share, and what this rank has for itself.

        It holds ``"shared"``, equal on all ranks, and ``"local"``, by rank. Loaded on as many
        ranks, training goes on with the bits of one that was not stopped. What policies conclude
        from the last step is in it.
        """
        if self._driver is not None:
            self._driver.follow(self._runner)
        shared, local, step = self._runner.save()
        return self._state(shared, {self._keys.of_rank(self._rank): local}, step)

    def empty_state_dict(self, world_size: int) -> dict[str, Any]:
        """A state of ``world_size`` ranks with zeros in it, for a checkpoint to be loaded into.

        ``torch.distributed.checkpoint.load`` fills the tensors it is shown. To resume on another
        number of ranks, show it those of all ranks that saved::

            state = {"hook": attached.empty_state_dict(world_size=4)}
            torch.distributed.checkpoint.load(state, checkpoint_id=path)
            attached.load_state_dict(state["hook"])
        """
        import torch

        shared, local, step = self._runner.save()
        ranks = {
            self._keys.of_rank(rank): {
                kind: {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
                for kind, tensors in local.items()
            }
            for rank in range(world_size)
        }
        return self._state(shared, ranks, step) | {"world_size": world_size}

    def _state(
        self, shared: HookTensors, local: Mapping[str, HookTensors], step: int
    ) -> dict[str, Any]:
        policies = {} if self._driver is None else {"policies": self._driver.to_text()}
        return {
            **policies,
            "format": hook_state.FORMAT,
            "version": hook_state.VERSION,
            "hook": type(self.options).__name__,
            "recipe": self.options.recipe(),
            "world_size": self._world_size,
            "step": step,
            "loss_scale": self._loss_scale,
            "rate": self._rate or 0.0,
            "shapes": dict(self._shapes),
            "shared": self._keys.add(hook_state.packed(shared)),
            "local": local,
        }

    def load_state_dict(self, state: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        """Take over what :meth:`state_dict` gave.

        Args:
            state: This rank's, or a list with those of all ranks that saved. A list may come from
                another number of ranks: each rank then takes an equal share of the sum of the
                residuals, so that no gradient is lost.

        Raises:
            HookStateError: It is of another model, hook, number of ranks or version. Nothing has
                changed then.
        """
        whole = dict(state) if isinstance(state, Mapping) else hook_state.merged(state)
        hook_state.check(whole, type(self.options).__name__, self.options.recipe(), self._shapes)
        local = hook_state.local_part(whole, self._rank, self._world_size, self._keys)
        shared = hook_state.unpacked(self._keys.take(whole["shared"]))
        before = self._load_policies(whole)
        try:
            self._runner.load(shared, local, whole["step"])
        except RuntimeError as error:
            if self._driver is not None:
                self._driver.load(before)
                self._driver.start(self._runner, self._runner.step)
            raise HookStateError(str(error)) from error
        self._rate = whole.get("rate") or None
        # Residuals are as large as the gradients they came from; without a scaler to follow, the
        # gradients to come have the scale of the present.
        saved, present = whole["loss_scale"], self._loss_scale
        self._loss_scale = saved
        if self._scaler is None and saved != present:
            self.scale_changed(saved, present)

    def _follow(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        if self._scaler is not None:
            self._runner.rescale(self._loss_scale)
            self._before_forward(model, self._follow_scaler)
        if optimizer is not None:
            self._optimizer = optimizer
            self._before_forward(model, self._follow_rate)

    def _obey(self, ddp: DistributedDataParallel, driver: PolicyDriver) -> None:
        self._driver, self._model = driver, ddp
        self._before_forward(ddp, lambda: driver.follow(self._runner))

    def _sample(self, ddp: DistributedDataParallel) -> None:
        """Take the measurements of each step, which no policy asks for."""
        self._before_forward(ddp, lambda: self._runner.take_facts())

    def _load_policies(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Policies come first: what they decide is part of the state. Returns what they had."""
        if self._driver is None:
            if "policies" in state:
                raise HookStateError(
                    "the state was saved with policies: attach the hook with them, or remove "
                    "'policies' from the state to go on without"
                )
            return []
        before = self._driver.snapshot()
        if "policies" in state:
            try:
                self._driver.load(snapshots_in(state["policies"]))
            except ValueError as error:
                raise HookStateError(str(error)) from error
        self._driver.start(self._runner, state["step"])
        return before

    def _follow_rate(self) -> None:
        """Residuals are what parameters still lack, divided by the rate of the next step."""
        assert self._optimizer is not None
        rate = float(self._optimizer.param_groups[0]["lr"])
        if rate <= 0:  # a step that applies nothing
            return
        if self._rate is not None and rate != self._rate:
            self._runner.rescale(self._rate / rate)
        self._rate = rate

    def _before_forward(self, model: torch.nn.Module, call: Callable[[], object]) -> None:
        self._calls.append(call)
        self._removable.append(model.register_forward_pre_hook(_BeforeForward(call)))

    def _follow_scaler(self) -> None:
        scale = self._scaler.get_scale()
        if scale != self._loss_scale:
            self.scale_changed(self._loss_scale, scale)


class _BeforeForward:
    """In a model's copies it does nothing: they have no hook."""

    def __init__(self, call: Callable[[], object] | None = None) -> None:
        self._call = call

    def __call__(self, *_: Any) -> None:
        if self._call is not None:
            self._call()

    def __reduce__(self) -> tuple[type[_BeforeForward], tuple[()]]:
        return _BeforeForward, ()
