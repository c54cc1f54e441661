"""``QuorumSGD``: steps of data-parallel training that wait for no rank in particular."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2._core.agreement import check_agreement
from q7x2._core.ending import Ending
from q7x2._core.groups import backend_of
from q7x2._core.option_checks import check_positive, check_whole
from q7x2._core.renamed import renamed
from q7x2.late.quorum_code import GradientCode, Part
from q7x2.late.quorum_exchange import Exchange
from q7x2.late.quorum_messages import Closed, Contribution, Timing
from q7x2.late.quorum_options import checked
from q7x2.late.replica import Replica

_LATE = ("drop", "keep")


@dataclass(frozen=True)
class QuorumSGDStats:
    """What a :class:`QuorumSGD` has done on this rank since it was made.

    Attributes:
        counted: The number of steps that this rank's gradient was part of.
        missed: The number of steps that were closed without this rank's gradient, and that it
            followed.
        skipped: The number of steps after which this rank took the state of another one, because it
            was far behind.
        waited_seconds: Seconds between the calls of ``step`` and the ends of their steps.
        staleness: The number of steps by which the last gradient was late: 0 if it counted.
    """

    counted: int = 0
    missed: int = 0
    skipped: int = 0
    waited_seconds: float = 0.0
    staleness: int = 0


@renamed(steps="load_state_dict")
class QuorumSGD(Ending):
    """Synchronous training in which a step counts the first gradients and drops the late ones.

    With backup workers (Chen et al. 2016), ``need`` of the n ranks close a step. With gradient
    coding (Tandon et al. 2017), each part of the batch is computed by ``copies`` ranks, and any
    n - copies + 1 of them have the exact gradient. All ranks go on with the same weights, bit for
    bit. A rank that finds its step closed takes what the others have, and goes on with them.

    >>> quorum = q7x2.late.QuorumSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), need=3)
    >>> while quorum.steps < 1000:
    ...     x, y = batch_of(quorum.steps)
    ...     loss_of(model(x), y).backward()
    ...     quorum.step(samples=len(x))
    >>> quorum.finish()

    All ranks make it together, without DDP. They start with the weights and the optimizer's state
    of rank 0. Buffers of the model stay local. docs/late_workers.md explains how ranks agree.

    Args:
        model: Its parameters that need gradients are trained: plain tensors on the CPU.
        optimizer: Over the model's parameters; equal on all ranks.
        need: How many gradients close a step: more than half of the ranks. None: all but one, or
            with ``copies`` what the code needs.
        copies: The number of ranks that compute each part of the batch. 1: no coding.
        grace: Seconds that a step waits for further gradients once it has enough.
        takeover: Seconds that the ranks wait for the one that closes the step, if it is stopped.
        late: With ``"drop"``, a gradient that comes too late is lost. With ``"keep"``, it is added
            to the rank's next one, unless the rank is so far behind that it takes another's state.
        timeout: After how long a step that cannot be closed raises; a float means seconds. None:
            the group's.
        group: A q7x2 group with 3 to 62 ranks; the default group if None.

    Raises:
        ValueError: An option is out of range, the group is too small, or ranks have different
            options or models.
        TypeError: ``model`` is not a module, or ``optimizer`` is not an optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        need: int | None = None,
        copies: int = 1,
        grace: float = 0.02,
        takeover: float = 0.1,
        late: str = "drop",
        timeout: timedelta | float | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        self._replica = Replica(model, optimizer)
        group = dist.group.WORLD if group is None else group
        backend = backend_of(group, "QuorumSGD")
        assert group is not None
        size = group.size()
        check_whole("copies", copies, 1, size)
        if copies > 1 and need is not None:
            raise ValueError("need must be None with copies, which say how many gradients suffice")
        if copies > 2:
            need = max(size // 2 + 1, size - copies + 1)
        need, timing = checked(need, grace, takeover, timeout, backend)
        if late not in _LATE or (copies > 1 and late == "keep"):
            raise ValueError(
                f"late must be one of {', '.join(_LATE)}, and 'drop' with copies, got {late!r}"
            )
        self.optimizer, self.need, self._late = optimizer, need, late
        self._rank, self._code = group.rank(), GradientCode(size, copies)
        self._parts = self._code.parts(self._rank)
        options: dict[str, Any] = {"need": need, "copies": copies, "late": late}
        options["parameters"] = self._replica.shapes
        check_agreement("QuorumSGD", options, group)
        self._replica.start(group)
        self._group, length, me = group, 4 * self._replica.numel, ref(self)
        self._exchange = Exchange(
            group,
            (length, length),
            lambda mask: (quorum := me()) is not None and quorum._is_enough(mask),
            self._replica.state,
            timing,
        )
        self._kept: Tensor | None = None
        self._stats = QuorumSGDStats()
        # Seconds of the last step, from end to end, and when it ended.
        self._period, self._ended = 0.0, time.monotonic()

    @property
    def steps(self) -> int:
        """Steps that are part of the weights; it grows by more than 1 on a rank that was late."""
        return self._exchange.step

    @property
    def parts(self) -> list[Part]:
        """The parts of the batch that this rank computes, of as many parts as there are ranks.

        ``weight`` multiplies the part's loss. The gradients of all parts are accumulated::

            for part in quorum.parts:
                x, y = part_of_batch(quorum.steps, part.index)
                (loss_of(model(x), y) * part.weight).backward()
            quorum.step()
        """
        return list(self._parts)

    @property
    def timing(self) -> Timing:
        """How long this rank waits. Its seconds may be changed between two calls of ``step``."""
        return self._exchange.timing

    @property
    def stats(self) -> QuorumSGDStats:
        """What it has done on this rank since it was made."""
        return self._stats

    @torch.no_grad()
    def step(self, samples: float = 1.0) -> None:
        """Close the current step with the gradients that are there, and update the weights.

        The gradients are zero afterwards. A rank whose gradient came too late takes the step of the
        others, waits for the end of the next one too, and so begins the following one together with
        them. If the others need its gradient for that one, it does not wait.

        Args:
            samples: The weight of this rank's gradient in the mean; with ``copies`` it is not used.

        Raises:
            FloatingPointError: The mean has Inf or NaN, on all ranks alike. The step is over, and
                has changed nothing.
            TimeoutError: Too few ranks came within the timeout. The step can be tried again.
            torch.distributed.DistBackendError: A rank died, or another failure of the group.
        """
        check_positive("samples", samples)
        begin, before = time.monotonic(), self.steps
        gradient = self._gradient()
        closed = self._exchange.close(Contribution(gradient.view(torch.uint8), float(samples)))
        counts = bool(closed.mask >> self._rank & 1)
        self._kept = None
        if not counts and closed.state is None and self._late == "keep":
            self._kept = gradient
        self._apply(closed)
        missed = 0
        if not counts and closed.state is None:
            missed = 1
            followed = self._exchange.follow(self._patience())
            if followed is not None:
                self._apply(followed)
                missed += followed.state is None
        self.optimizer.zero_grad()
        if counts:
            now = time.monotonic()
            self._period, self._ended = now - self._ended, now
        passed = self.steps - before
        self._stats = replace(
            self._stats,
            counted=self._stats.counted + counts,
            missed=self._stats.missed + missed,
            skipped=self._stats.skipped + passed - counts - missed,
            waited_seconds=self._stats.waited_seconds + time.monotonic() - begin,
            staleness=passed - counts,
        )

    def finish(self) -> None:
        """Wait for all ranks at the end of the training; helps those that are behind.

        Every rank calls it after its last step. Afterwards all ranks have the same weights, and
        :meth:`step` is not to be called any more. Raises the same as :meth:`step`.
        """
        self._exchange.finish()

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, to be saved beside the states of the model and the optimizer.

        A gradient that ``late="keep"`` has kept is not in it.
        """
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave; all ranks call it before their first step.

        Load the model and the optimizer before. All ranks take those of rank 0. The state may come
        from another number of ranks.

        Args:
            state: The dict, the same on all ranks.

        Raises:
            ValueError: It is another one than on rank 0. Nothing has changed then.
            RuntimeError: This rank has called :meth:`step`.
        """
        check_whole("steps", state["steps"], 0)
        check_agreement("QuorumSGD's state", {"steps": state["steps"]}, self._group)
        self._exchange.resume(state["steps"])
        self._replica.start(self._group)

    def _patience(self) -> float:
        """How long a late rank waits for the next step without computing its part of it."""
        timing = self._exchange.timing
        return timing.grace + max(2 * self._period, timing.takeover)

    def _is_enough(self, mask: int) -> bool:
        if mask.bit_count() < self.need:
            return False
        return self._code.copies == 1 or self._code.coefficients(mask) is not None

    def _gradient(self) -> Tensor:
        """This rank's, with what is kept of the last one; a new vector."""
        gradient = self._replica.gradient()
        return gradient if self._kept is None else gradient.add_(self._kept)

    def _apply(self, closed: Closed) -> None:
        if closed.state is not None:
            self._replica.load(closed.state)
            return
        if self._code.copies > 1:
            coefficients = self._code.coefficients(closed.mask)
            assert coefficients is not None
            shares = {r: coefficients[r] / self._code.world_size for r in closed.contributions}
        else:
            total = sum(each.weight for each in closed.contributions.values())
            shares = {r: each.weight / total for r, each in closed.contributions.items()}
        mean = torch.zeros(self._replica.numel)
        for rank, each in closed.contributions.items():
            if shares[rank]:
                mean.add_(each.data.view(torch.float32), alpha=shares[rank])
        is_finite = self._replica.apply(mean)
        self._exchange.serve()
        if not is_finite:
            raise FloatingPointError(
                f"the gradient of step {closed.step - 1} has Inf or NaN on some rank; the step "
                f"changes nothing"
            )
