"""``StaleSGD``: gradients that are applied when they come, with bounded staleness."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2._core.agreement import check_agreement
from q7x2._core.ending import Ending
from q7x2._core.groups import backend_of
from q7x2._core.option_checks import check_flags, check_positive, check_whole, duration_of
from q7x2._core.renamed import renamed, renamed_attributes
from q7x2.late.lag import MODES, LagEvent, LagFacts, describe_mode, mode_of
from q7x2.late.log import Applied, Log
from q7x2.late.order import MOST_RANKS, WIDTH, Kind, Order, bits_of, header_of, value_of
from q7x2.late.quorum_mail import Mail
from q7x2.late.replica import Replica
from q7x2.late.stale_stats import StaleSGDStats

_LEAST_SECONDS = 1e-9


@dataclass(frozen=True)
class _Gradient:
    """What a rank has sent.

    Attributes:
        data: Float32, the sum over samples.
        weight: Samples.
        facts: What the log wants to know.
    """

    data: Tensor
    weight: float
    facts: Applied


@renamed(every="send_every", state="load_state_dict")
@renamed_attributes(sync="flush", version="steps")
class StaleSGD(Ending):
    """Data-parallel training in which a rank does not wait for slower ones, within a bound.

    Gradients make versions of the weights. All ranks apply the same gradients in the same order,
    so version v has the same bits on all of them; but a slow rank is still computing with an older
    one. A gradient is never applied more than ``staleness`` versions after the one that it was
    computed with: the others wait for it before that (Ho et al. 2013). None is lost. The mode says
    when gradients are applied:

    - ``"eager"``: each one when it comes, as asynchronous SGD does.
    - ``"buffered"``: the mean of the first ``buffer`` ones that come (FedBuff, Nguyen et al. 2022).
    - ``"epochs"``: each rank adds up the gradients of ``send_every`` backwards; the mean of all
      ranks.

    :class:`FollowLag` switches between them by the lag of the ranks.

    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> late = q7x2.late.StaleSGD(model, optimizer, mode=q7x2.late.FollowLag())
    >>> while late.steps < 10_000:
    ...     loss_of(model(x), y).backward()
    ...     late.step(samples=len(x))
    >>> late.finish()

    All ranks make it together, without DDP. They start with the weights and the optimizer's state
    of rank 0. Buffers of the model stay local. docs/late_workers.md says when to use what.

    Args:
        model: Its parameters that need gradients are trained: plain tensors on the CPU.
        optimizer: Over the model's parameters; equal on all ranks. It takes one step per version.
        mode: One of the names above, or a function of :class:`LagFacts` that returns one.
        buffer: Gradients of a version in the mode ``"buffered"``. None: half of the ranks, rounded
            up.
        send_every: Backwards of a rank per version in the mode ``"epochs"``.
        staleness: The largest number of versions by which a gradient may be late. 0: every version
            has the gradients of all ranks. None: four times the number of ranks.
        discount: A gradient with staleness s is multiplied by 1 / sqrt(1 + s), as in FedBuff.
        timeout: How long a step that has to wait does so before it raises; a float means seconds.
            None: the group's.
        group: A q7x2 group with up to 62 ranks; the default group if None.

    Raises:
        ValueError: An option is out of range, or ranks have different options or models.
        TypeError: ``model`` is not a module, or ``optimizer`` is not an optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        mode: Any = "eager",
        buffer: int | None = None,
        send_every: int = 1,
        staleness: int | None = None,
        discount: bool = True,
        timeout: timedelta | float | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        self._replica = Replica(model, optimizer)
        group = dist.group.WORLD if group is None else group
        backend = backend_of(group, "StaleSGD")
        assert group is not None
        size = group.size()
        if size > MOST_RANKS:
            raise ValueError(f"StaleSGD needs a group with 1 to {MOST_RANKS} ranks, got {size}")
        choose = mode_of(mode)
        buffer = -(-size // 2) if buffer is None else buffer
        check_whole("buffer", buffer, 1, size)
        check_whole("send_every", send_every, 1)
        staleness = 4 * size if staleness is None else staleness
        check_whole("staleness", staleness, 0)
        check_flags(discount=discount)
        timeout = duration_of("timeout", backend.options._timeout if timeout is None else timeout)
        options: dict[str, Any] = {
            "buffer": buffer,
            "send_every": send_every,
            "staleness": staleness,
        }
        options |= {"mode": describe_mode(mode), "discount": discount}
        check_agreement("StaleSGD", options | {"parameters": self._replica.shapes}, group)
        self._replica.start(group)
        self._group, self._make_log = group, partial(Log, size, staleness, buffer, choose)
        self.optimizer, self.timeout = optimizer, timeout.total_seconds()
        self._rank, self._size = group.rank(), size
        self._send_every, self._discount = send_every, discount
        self._log = self._make_log()
        self._data = Mail(group, WIDTH)
        inbox = self._data.inbox
        self._orders = Mail(group, WIDTH, None if self._rank == 0 else inbox, drives=False)
        self._order: Order | None = None
        if self._rank == 0:
            self._order = Order(self._orders, self._make_log(), inbox)
        # By rank and number: what has come and is not applied.
        self._held: dict[tuple[int, int], _Gradient] = {}
        self._applied = [0] * size  # gradients of each rank
        self._entries: deque[tuple[int, int, int]] = deque()
        self._end: int | None = None  # the version of the last flush
        self._sum: Tensor | None = None  # for this rank's next gradient
        self._weight, self._backwards, self._base, self._seconds = 0.0, 0, 0, 0.0
        self._number = 0  # for this rank's next gradient
        self._is_sent = self._is_done = self._is_finished = self._has_stepped = False
        self._broken: list[int] = []  # versions whose mean had Inf or NaN
        self._stats, self._since = StaleSGDStats(), time.monotonic()

    @property
    def steps(self) -> int:
        """The version of this rank's weights: the number of the optimizer's steps."""
        return self._log.version

    @property
    def mode(self) -> str:
        """The mode in which the next version is made."""
        return self._log.mode

    @property
    def lag(self) -> LagFacts:
        """How far ranks lag behind each other; equal on all ranks with the same version."""
        return self._log.facts

    @property
    def history(self) -> list[LagEvent]:
        """The modes so far, oldest first; the same on all ranks with the same version."""
        return list(self._log.history)

    @property
    def stats(self) -> StaleSGDStats:
        """What it has done on this rank since it was made."""
        return self._stats

    @torch.no_grad()
    def step(self, samples: float = 1.0) -> None:
        """Send this rank's gradient, and return when it is applied here.

        In the mode ``"epochs"`` it is sent in every ``send_every``-th call only. The gradients are
        zero afterwards.

        Args:
            samples: The weight of this backward in means. Its gradient is a mean over them.

        Raises:
            FloatingPointError: The mean of a version has Inf or NaN, on all ranks alike. That
                version has the weights of the one before.
            RuntimeError: Ranks have chosen different modes.
            TimeoutError: It had to wait for longer than the timeout. The next call waits on, and
                does not use its own gradient.
            torch.distributed.DistBackendError: A rank died, or another failure of the group.
        """
        check_positive("samples", samples)
        if not self._is_sent:
            self._accumulate(samples)
        self.optimizer.zero_grad()
        self._has_stepped = True
        self._stats = replace(self._stats, steps=self._stats.steps + 1)
        if self.mode != "epochs" or self._backwards >= self._send_every or self._is_sent:
            self._exchange()
        self._since = time.monotonic()

    @torch.no_grad()
    def flush(self) -> None:
        """Wait until all ranks have called it; then all have the same version.

        Call it before a validation or a checkpoint. What a rank has added up is sent before.
        Raises the same as :meth:`step`; then it can be called again.
        """
        if self._sum is not None or self._is_sent:
            self._exchange()
        if not self._is_done:
            self._is_done, self._end = True, None
            self._say(Kind.DONE)
        self._wait(lambda: self._end == self.steps)
        self._is_done = False
        self._log.settle()
        self._since = time.monotonic()
        self._report()

    def finish(self) -> None:
        """:meth:`flush` at the end of the training; then ``step`` is not to be called any more."""
        if self._is_finished:
            return
        self.flush()
        if self._order is not None:
            self._order.stop()
        for mail in (self._data, self._orders):
            mail.leave()
        self._is_finished = True

    def state_dict(self) -> dict[str, Any]:
        """Version, mode, lags and history, to be saved right after :meth:`flush`.

        Save it beside the states of the model and the optimizer; it is the same on all ranks.

        Raises:
            RuntimeError: There were steps since the last :meth:`flush`.
        """
        if self._end != self.steps or self._sum is not None or self._is_sent:
            raise RuntimeError("state_dict() is available right after flush() only")
        return {"world_size": self._size, "log": self._log.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave; all ranks call it before their first step.

        Load the model and the optimizer before. All ranks take those of rank 0.

        Args:
            state: The dict, the same on all ranks.

        Raises:
            ValueError: It is of another number of ranks, or another one than on rank 0. Nothing has
                changed then.
            RuntimeError: This rank has called :meth:`step`.
        """
        if self._has_stepped or self.steps:
            raise RuntimeError("load_state_dict() is to be called before the first step()")
        if state["world_size"] != self._size:
            raise ValueError(f"the state is of {state['world_size']} ranks, expected {self._size}")
        check_agreement("StaleSGD's state", {"log": state["log"]}, self._group)
        self._log = self._make_log(state["log"])
        if self._order is not None:
            self._order.resume(self._make_log(state["log"]))
        self._replica.start(self._group)

    # ---- this rank's gradient --------------------------------------------------------------------

    def _accumulate(self, samples: float) -> None:
        gradient = self._replica.gradient().mul_(samples)
        self._seconds += time.monotonic() - self._since
        self._weight += samples
        self._backwards += 1
        if self._sum is None:
            self._sum, self._base = gradient, self.steps
        else:
            self._sum.add_(gradient)

    def _exchange(self) -> None:
        """Send what has been added up, unless an earlier call has, until it is applied."""
        if not self._is_sent:
            self._send()
        number = self._number - 1
        self._wait(lambda: self._applied[self._rank] > number)
        self._is_sent = False
        while self._entries and self._is_whole():
            self._apply()
        self._report()

    def _send(self) -> None:
        assert self._sum is not None
        seconds = max(_LEAST_SECONDS, self._seconds / self._backwards)
        number, facts = self._number, Applied(self._rank, self._base, seconds)
        mine = _Gradient(self._sum, self._weight, facts)
        bits = bits_of(seconds)
        header = header_of(Kind.GRADIENT, number, self._base, bits_of(self._weight), bits)
        for peer in self._data.peers:
            self._data.send(peer, header, mine.data.view(torch.uint8))
        self._held[self._rank, number] = mine
        self._say(Kind.OFFER, self._base, bits)
        self._sum, self._weight, self._backwards, self._seconds = None, 0.0, 0, 0.0
        self._is_sent = True
        self._number = number + 1
        self._stats = replace(self._stats, sent=self._number)

    def _say(self, kind: Kind, *numbers: int) -> None:
        """Tell rank 0."""
        if self._order is not None:
            self._order.hear(kind, *numbers)
        else:
            self._orders.send(0, header_of(kind, *numbers))

    # ---- what comes ------------------------------------------------------------------------------

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Apply entries until ``is_over()``."""
        begin = time.monotonic()
        while not is_over():
            if self._entries and self._is_whole():
                self._apply()
                continue
            left = self.timeout - (time.monotonic() - begin)
            if left <= 0:
                raise TimeoutError(
                    f"step {self.steps} timed out after {self.timeout:g} s, waiting for "
                    f"{self._missing()}"
                )
            letter = self._data.receive(left)
            if letter is not None:
                self._hear(letter)
        waited = self._stats.waited_seconds + time.monotonic() - begin
        self._stats = replace(self._stats, waited_seconds=waited)

    def _missing(self) -> str:
        there = {rank for rank, _ in self._held}
        ranks = [str(rank) for rank in range(self._size) if rank not in there]
        return f"ranks {', '.join(ranks)}" if ranks else "rank 0 to order gradients"

    def _hear(self, letter: Any) -> None:
        kind, *numbers = letter.header
        if kind == Kind.GRADIENT:
            number, version, weight, seconds = numbers
            facts = Applied(letter.sender, version, value_of(seconds))
            data = torch.empty(0) if letter.payload is None else letter.payload.view(torch.float32)
            self._held[letter.sender, number] = _Gradient(data, value_of(weight), facts)
        elif kind == Kind.ENTRY:
            version, mask, mode, _ = numbers
            self._entries.append((version, mask, mode))
        elif kind == Kind.END:
            self._end = numbers[0]
        elif kind == Kind.FAILED:
            assert self._order is not None
            assert self._order.error is not None
            raise self._order.error

    def _ranks(self) -> list[int]:
        """The ranks of the next entry."""
        _, mask, _ = self._entries[0]
        return [rank for rank in range(self._size) if mask >> rank & 1]

    def _is_whole(self) -> bool:
        """Whether all gradients of the next entry have come."""
        return all((rank, self._applied[rank]) in self._held for rank in self._ranks())

    def _apply(self) -> None:
        """Make the next version of the weights, from the next entry."""
        ranks = self._ranks()
        version, _, mode = self._entries.popleft()
        if MODES[mode] != self.mode:
            raise RuntimeError(
                f"rank 0 makes version {version + 1} in the mode {MODES[mode]!r}, and this rank in "
                f"{self.mode!r}: a mode must depend on its facts alone"
            )
        gradients = [self._held.pop((rank, self._applied[rank])) for rank in ranks]
        total, mean = sum(each.weight for each in gradients), torch.zeros(self._replica.numel)
        for each in gradients:
            stale = version - each.facts.version
            factor = 1 / math.sqrt(1 + stale) if self._discount else 1.0
            mean.add_(each.data, alpha=factor / total)
            if each.facts.rank == self._rank:
                largest = max(stale, self._stats.largest_staleness)
                self._stats = replace(self._stats, staleness=stale, largest_staleness=largest)
            self._applied[each.facts.rank] += 1
        if not self._replica.apply(mean):
            self._broken.append(version + 1)
        self._log.add([each.facts for each in gradients])

    def _report(self) -> None:
        if self._broken:
            broken, self._broken = self._broken, []
            raise FloatingPointError(
                f"the gradient of version {broken[0]} has Inf or NaN on some rank; it changes "
                f"nothing"
            )
