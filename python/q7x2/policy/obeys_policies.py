"""``ObeysPolicies``: what :class:`Attached` does if policies decide for its hook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from q7x2._core.option_checks import check_whole
from q7x2._core.renamed import renamed_attributes
from q7x2.policy.driver import PolicyDriver, snapshots_in
from q7x2.policy.policy import DivergenceError, Policy, Verdict
from q7x2.policy.snapshots import Snapshots

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from q7x2._core.runner import Runner

_MOST_ROLL_BACKS = 4  # in a row, without a good validation between them


@renamed_attributes(step="steps")
@dataclass(frozen=True)
class Observation:
    """What came of a validation.

    Attributes:
        loss: The mean of the ranks' losses.
        rolled_back: The training had diverged, and is where it was at an earlier step.
        steps: The number of reductions that the training has behind it now.
    """

    loss: float
    rolled_back: bool
    steps: int


class ObeysPolicies:
    """The part of :class:`Attached` that is about policies, and about when gradients travel."""

    _runner: Runner
    _driver: PolicyDriver | None = None
    _model: Any = None  # that has the hook
    _snapshots: Snapshots | None = None
    _backwards = 0  # since the last reduction

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies given to :func:`attach`."""
        return () if self._driver is None else tuple(self._driver.policies)

    @property
    def cadence(self) -> int:
        """The number of backwards per reduction: divide losses by it to get their mean."""
        return 1 if self._driver is None else self._driver.cadence

    @property
    def validation_due(self) -> bool:
        """A policy wants a validation now; see :meth:`observe`."""
        return self._driver is not None and self._driver.validation_due(self._runner.step)

    def no_sync(self) -> AbstractContextManager[None]:
        """In it, a backward leaves gradients on their rank, and the next one after it adds to them.

        It is ``no_sync`` of a DistributedDataParallel, ``set_requires_gradient_sync`` of FSDP2 and
        ``replicate()``, and the same for plain modules. Both forward and backward belong in it.

        >>> with hook.no_sync():
        ...     loss(model(first)).backward()
        >>> loss(model(second)).backward()  # reduces the sum of both
        """
        return self._unreduced()

    def join(self, throw_on_early_termination: bool = False) -> AbstractContextManager[Any]:
        """Train with a different number of inputs per rank, as ``DistributedDataParallel.join``.

        Ranks without inputs contribute zeros, and means are over all ranks. In the end all ranks
        get the parameters of the last one. For a DistributedDataParallel or a plain module.

        >>> with hook.join():
        ...     for batch in batches_of_this_rank: ...

        Args:
            throw_on_early_termination: Raise RuntimeError on all ranks as soon as one has no more
                inputs.

        Raises:
            TypeError: The model is one of FSDP2 or of ``replicate()``.
        """
        from torch.nn.parallel import DistributedDataParallel

        if not isinstance(self._model, DistributedDataParallel):
            raise TypeError(
                "join is for a DistributedDataParallel or a plain module, got "
                f"{type(self._model).__name__}: FSDP2 and replicate() have none, so give all ranks "
                "the same number of inputs"
            )
        context: AbstractContextManager[Any] = self._model.join(
            throw_on_early_termination=throw_on_early_termination
        )
        return context

    @contextmanager
    def accumulate(self) -> Iterator[bool]:
        """Run one forward and backward in it, as often as the cadence of the policies says.

        Yields:
            Whether this backward reduces the gradients. If so, let the optimizer step after it.
            Else gradients stay on their rank, and the next backward adds to them.
        """
        driver = self._required("accumulate")
        if self._backwards == 0:
            driver.follow(self._runner)
        is_last = self._backwards + 1 >= driver.cadence
        with nullcontext() if is_last else self._unreduced():
            yield is_last
        self._backwards = 0 if is_last else self._backwards + 1

    def guard(self, *, keep: int = 2, **objects: Any) -> None:
        """Roll ``objects`` back together with the hook if the training diverges.

        A first snapshot is taken now, and one at each good validation. They are in the host's
        memory: as much as the objects and the residuals have, ``keep`` times.

        >>> hook.guard(model=ddp, optimizer=optimizer, scheduler=scheduler)

        Args:
            keep: Snapshots that are kept.
            **objects: What has ``state_dict`` and ``load_state_dict``, and changes in training.

        Raises:
            TypeError: An object has no state.
            RuntimeError: The hook was attached without a policy.
        """
        self._required("guard")
        check_whole("keep", keep, 1)
        for name, each in objects.items():
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                raise TypeError(
                    f"{name} must have state_dict and load_state_dict, got {type(each).__name__}"
                )
        self._snapshots = Snapshots(objects, keep)
        self.snapshot()

    def snapshot(self) -> None:
        """Remember the present state of what :meth:`guard` was given, of the hook and policies."""
        self._guarded().take(self.state_dict())  # type: ignore[attr-defined]

    def roll_back(self) -> None:
        """Go back to the last snapshot. All ranks call it.

        The policies keep what they learned about the danger: :class:`ErrorBudget` tightens.
        """
        driver = self._required("roll_back")
        state = self._guarded().restore()
        driver.roll_back(snapshots_in(state.pop("policies")))
        self._backwards = 0
        self.load_state_dict(state)  # type: ignore[attr-defined]

    def observe(self, validation_loss: float) -> Observation:
        """Tell the policies a validation loss; a collective call of all ranks.

        If it means that the training has diverged, the training is rolled back to the last good
        snapshot: model, optimizer and whatever else :meth:`guard` was given, and the hook's
        residuals. Otherwise a snapshot is taken, if there is a guard.

        Args:
            validation_loss: The loss of this rank. The mean over the ranks counts.

        Raises:
            DivergenceError: The training has diverged and there is no guard; or it has diverged
                several times in a row without a good validation.
            RuntimeError: The hook was attached without a policy.
        """
        driver = self._required("observe")
        loss = self._mean(float(validation_loss))
        step = self._runner.step
        driver.follow(self._runner)
        if driver.observe(loss, step) is Verdict.GOOD:
            if self._snapshots is not None:
                self.snapshot()
            driver.start(self._runner, step)
            return Observation(loss, False, step)
        if self._snapshots is None:
            raise DivergenceError(
                f"the training has diverged after {step} reductions, with a validation loss of "
                f"{loss:g}: hook.guard(model=..., optimizer=...) would roll it back"
            )
        if self._snapshots.roll_backs >= _MOST_ROLL_BACKS:
            raise DivergenceError(
                f"the training has diverged {_MOST_ROLL_BACKS + 1} times without a good validation "
                f"in between, the last time with a loss of {loss:g} after {step} reductions"
            )
        self.roll_back()
        return Observation(loss, True, self._runner.step)

    def _required(self, method: str) -> PolicyDriver:
        if self._driver is None or self._model is None:
            raise RuntimeError(f"{method} needs a hook that was attached with a policy")
        return self._driver

    def _guarded(self) -> Snapshots:
        if self._snapshots is None:
            raise RuntimeError("there is no snapshot: call guard first")
        return self._snapshots

    def _unreduced(self) -> AbstractContextManager[None]:
        """In it, a backward leaves gradients on their rank."""
        context: AbstractContextManager[None] = self._model.no_sync()
        return context

    def _mean(self, loss: float) -> float:
        """Over the ranks; a collective call."""
        import torch
        import torch.distributed as dist

        device = next(self._model.parameters()).device
        total = torch.tensor([loss], dtype=torch.float64, device=device)
        dist.all_reduce(total, group=self._model.process_group)
        return total.item() / dist.get_world_size(self._model.process_group)
