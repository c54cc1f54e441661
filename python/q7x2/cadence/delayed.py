"""``PipelinedSGD``: means of gradients that are applied later, or only where much has changed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2._core.agreement import check_agreement
from q7x2._core.ending import Ending
from q7x2._core.groups import resolve_group
from q7x2._core.option_checks import check_ratio, check_whole
from q7x2._core.trained import trained_parameters


@dataclass(frozen=True)
class PipelinedSGDStats:
    """What a :class:`PipelinedSGD` has done since it was made; equal on all ranks.

    Attributes:
        steps: The number of calls of ``step``.
        updates: The number of steps of the optimizer.
        sent_elements: The number of gradient elements in all messages.
        skipped: The number of parameters that a step left out, summed over all steps.
        longest_skip: The most steps in a row in which a parameter was not sent.
    """

    steps: int = 0
    updates: int = 0
    sent_elements: int = 0
    skipped: int = 0
    longest_skip: int = 0


@dataclass
class _Message:
    """A sum over the ranks, on its way or here.

    Attributes:
        sums: The chosen gradients, one behind the other, and the facts.
        chosen: Which parameters are in it.
        work: None once it has been waited for.
    """

    sums: Tensor
    chosen: list[bool]
    work: Any


class PipelinedSGD(Ending):
    """Data-parallel training with updates one step late, or with only the largest changes sent.

    With ``delay=1`` a step applies the mean gradient of the step before, and that of this step
    travels while the next one computes (Pipe-SGD, Li et al. 2018). With ``share=0.3`` a step sends
    the parameters whose gradients have added up to the most, relative to their weights, until 30 %
    of the elements are together. The others keep theirs for a later step.

    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> updates = q7x2.cadence.PipelinedSGD(model, optimizer)
    >>> for x, y in batches:
    ...     loss_of(model(x), y).backward()
    ...     updates.step()
    >>> updates.finish()

    All ranks make it together, without DDP, and call :meth:`step` equally often. They start with
    the weights of rank 0. Gradients may be accumulated over several backwards. Works over any
    backend. Buffers of the model stay local.

    Args:
        model: Its parameters that need gradients are trained: plain tensors on one device, of
            float32, bfloat16 or float16.
        optimizer: Over the model's parameters; equal on all ranks. It does not see parameters that
            were not sent.
        delay: The number of steps between a gradient and its update.
        share: The smallest share of all elements that a step sends. Parameters are sent whole.
        longest_skip: The number of steps in a row for which a parameter may be left out.
        group: The default group if None.

    Raises:
        ValueError: An option is out of range, or ranks have different options or models.
        TypeError: ``model`` is not a module, or ``optimizer`` is not an optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        delay: int = 1,
        share: float = 1.0,
        longest_skip: int = 10,
        group: ProcessGroup | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be of type Module, got {model!r}")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be of type Optimizer, got {optimizer!r}")
        check_whole("delay", delay, 0)
        check_ratio("share", share)
        check_whole("longest_skip", longest_skip, 1)
        group = resolve_group(group)
        self._parameters = trained_parameters(model)
        self._sizes = [p.numel() for _, p in self._parameters]
        shapes = [(name, tuple(p.shape), p.dtype) for name, p in self._parameters]
        options = {"delay": delay, "share": share, "longest_skip": longest_skip}
        check_agreement("PipelinedSGD", options | {"parameters": shapes}, group)
        self.optimizer, self._group, self._delay = optimizer, group, delay
        self._share, self._longest_skip = share, longest_skip
        self._device = self._parameters[0][1].device
        with torch.no_grad():
            for _, p in self._parameters:
                dist.broadcast(p, group=group, group_src=0)
        # What this rank has not sent yet, float32; None: all is sent at once.
        self._residual = None if share == 1 else torch.zeros(sum(self._sizes), device=self._device)
        self._skips = [0] * len(self._sizes)
        # By parameter, of the last message that was applied: how much has changed. None: not yet.
        self._changes: list[float] | None = None
        self._messages: deque[_Message] = deque()
        self._stats = PipelinedSGDStats()

    @property
    def stats(self) -> PipelinedSGDStats:
        """What it has done since it was made."""
        return self._stats

    @property
    def residuals(self) -> dict[str, Tensor]:
        """Copies of what this rank has not sent yet, float32, by name; empty with ``share=1``."""
        if self._residual is None:
            return {}
        views = self._views(self._residual)
        names = [name for name, _ in self._parameters]
        return {name: view.clone() for name, view in zip(names, views, strict=True)}

    @torch.no_grad()
    def step(self) -> None:
        """Send this step's gradients, and apply those of ``delay`` steps ago; a collective call.

        The gradients are zero afterwards.

        Raises:
            FloatingPointError: The mean that is due has Inf or NaN, on all ranks alike. It is
                dropped, and the next call goes on.
            torch.distributed.DistBackendError: A rank died, or another failure of the group. What
                was on its way is lost.
        """
        self._send()
        self._stats = replace(self._stats, steps=self._stats.steps + 1)
        self._apply_all_but(self._delay)

    @torch.no_grad()
    def flush(self) -> None:
        """Apply all that is on its way, for example before an evaluation.

        Residuals stay. Raises the same as :meth:`step`.
        """
        self._apply_all_but(0)

    def finish(self) -> None:
        """:meth:`flush` at the end of the training."""
        self.flush()

    def state_dict(self) -> dict[str, Any]:
        """A copy of what goes on, on this rank; waits for messages on the way.

        Save it on each rank, beside the model's and the optimizer's state. Loaded on as many ranks,
        training goes on with the bits of one that was not stopped.
        """
        for message in self._messages:
            self._land(message)
        return {
            "world_size": self._group.size(),
            "shapes": [list(p.shape) for _, p in self._parameters],
            "residual": None if self._residual is None else self._residual.clone(),
            "skips": list(self._skips),
            "changes": None if self._changes is None else list(self._changes),
            "messages": [(m.sums.clone(), list(m.chosen)) for m in self._messages],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave on this rank.

        Args:
            state: The dict of this rank.

        Raises:
            ValueError: It is of another model, another number of ranks or another ``share``.
                Nothing has changed then.
        """
        shapes = [list(p.shape) for _, p in self._parameters]
        mine = self._group.size(), shapes, self._residual is None
        saved = state["world_size"], state["shapes"], state["residual"] is None
        if mine != saved:
            raise ValueError(
                f"the state is of {saved[0]} ranks and {len(saved[1])} parameters"
                f"{'' if saved[2] else ' with residuals'}, expected {mine[0]} ranks and "
                f"{len(mine[1])} parameters{'' if mine[2] else ' with residuals'} of equal shapes"
            )
        if self._residual is not None:
            self._residual.copy_(state["residual"])
        self._skips, self._changes = list(state["skips"]), state["changes"]
        self._messages = deque(
            _Message(sums.to(self._device, copy=True), list(chosen), None)
            for sums, chosen in state["messages"]
        )

    # ---- messages --------------------------------------------------------------------------------

    def _send(self) -> None:
        total = torch.zeros(sum(self._sizes), device=self._device)
        views = self._views(total)
        for (_, p), view in zip(self._parameters, views, strict=True):
            if p.grad is not None:
                view.copy_(p.grad)
        self.optimizer.zero_grad()
        chosen = [True] * len(views)
        if self._residual is None:
            message = total
        else:
            total.add_(self._residual)
            chosen = self._choose()
            facts = self._facts(views)
            sent = [view.flatten() for view, is_sent in zip(views, chosen, strict=True) if is_sent]
            message = torch.cat([*sent, facts])
            for view, is_sent in zip(views, chosen, strict=True):
                if is_sent:
                    view.zero_()
            self._residual = total
        work = dist.all_reduce(message, group=self._group, async_op=True)
        self._messages.append(_Message(message, chosen, work))
        self._skips = [
            0 if is_sent else skips + 1 for skips, is_sent in zip(self._skips, chosen, strict=True)
        ]
        sent_elements = sum(n for n, is_sent in zip(self._sizes, chosen, strict=True) if is_sent)
        self._stats = replace(
            self._stats,
            sent_elements=self._stats.sent_elements + sent_elements,
            skipped=self._stats.skipped + chosen.count(False),
            longest_skip=max(self._stats.longest_skip, *self._skips),
        )

    def _facts(self, gradients: Sequence[Tensor]) -> Tensor:
        """Squares of the norms of what has added up, by parameter, and rank 0's of the weights.

        The sum over all ranks is the same on all of them, so all choose alike, also if their
        processors round norms otherwise.
        """
        weights = [p.float() for _, p in self._parameters]
        mine = torch.stack([each.square().sum() for each in gradients])
        squares = torch.stack([each.square().sum() for each in weights])
        return torch.cat([mine, squares if self._group.rank() == 0 else torch.zeros_like(squares)])

    def _choose(self) -> list[bool]:
        """What is sent: what was left out for long, then what has changed most."""
        if self._changes is None:
            return [True] * len(self._sizes)
        chosen = [skips >= self._longest_skip for skips in self._skips]
        wanted = self._share * sum(self._sizes)
        have = sum(n for n, is_sent in zip(self._sizes, chosen, strict=True) if is_sent)
        changes = self._changes
        for index in sorted(range(len(chosen)), key=lambda each: (-changes[each], each)):
            if have >= wanted:
                break
            if not chosen[index]:
                chosen[index] = True
                have += self._sizes[index]
        return chosen

    def _apply_all_but(self, count: int) -> None:
        while len(self._messages) > count:
            message = self._messages.popleft()
            self._land(message)
            self._apply(message)

    def _land(self, message: _Message) -> None:
        if message.work is not None:
            message.work.wait()
            message.work = None

    def _apply(self, message: _Message) -> None:
        if self._residual is not None:
            facts = message.sums[-2 * len(self._sizes) :].view(2, -1).tolist()
            self._changes = [
                math.sqrt(change / weight) if weight else math.inf
                for change, weight in zip(*facts, strict=True)
            ]
        if not torch.isfinite(message.sums).all():
            self._changes = None
            raise FloatingPointError(
                "the mean gradient has Inf or NaN on some rank; it is not applied"
            )
        offset = 0
        for (_, p), is_sent in zip(self._parameters, message.chosen, strict=True):
            if is_sent:
                mean = message.sums[offset : offset + p.numel()] / self._group.size()
                p.grad = mean.view(p.shape).to(p.dtype)
                offset += p.numel()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._stats = replace(self._stats, updates=self._stats.updates + 1)

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, self._sizes)
        return [part.view(p.shape) for (_, p), part in zip(self._parameters, parts, strict=True)]
