"""Which gradients each version of the weights has, and how far behind their ranks were.

Entry k of the log turns version k of the weights into version k + 1. It names the ranks whose
gradients it applies, at most one of each rank. A gradient computed with version b and applied by
entry k has the staleness k - b::

    entry      0      1      2      3
    ranks     {1}    {2}    {1}   {0, 2}     rank 0 computed with version 0: its staleness is 3

A rank computes its next gradient with the version after its last one, or a later one. So the log
alone says how stale a gradient can be at most, and an entry includes the ranks that would be too
stale in the next one. If their gradients are not there, the entry waits for them.

There is no I/O and no clock here. All ranks keep the same log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from q7x2.late.lag import LagEvent, LagFacts, Mode, check_mode

_SMOOTHING = 0.25  # the share of the newest lag in its average


@dataclass(frozen=True)
class Applied:
    """A gradient that an entry applies.

    Attributes:
        version: The version of the weights with which it was computed.
        seconds: The time of one backward on its rank.
    """

    rank: int
    version: int
    seconds: float


class Log:
    """The log, as one rank knows it.

    Args:
        staleness: The largest staleness of a gradient.
        buffer: Gradients of an entry in the mode ``"buffered"``.
        state: What :attr:`state` was at the end of an earlier training; None: a new one.

    Attributes:
        version: The version of the weights: the number of entries.
        mode: In which the next entry is made.
        history: Its modes, oldest first.
    """

    def __init__(
        self,
        world_size: int,
        staleness: int,
        buffer: int,
        choose: Mode,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._world_size, self._staleness, self._buffer = world_size, staleness, buffer
        self._choose = choose
        self.version, self.mode, self._since = 0, "eager", 0
        self.history: list[LagEvent] = []
        self._lags: list[float | None] = [None] * world_size
        self._sizes: deque[int] = deque(maxlen=max(1, staleness))  # those of the last entries
        if state is not None:
            self.version, self.mode, self._since = state["version"], state["mode"], state["since"]
            self.history = [_event_in(event) for event in state["history"]]
            self._lags = list(state["lags"])
        self._bases = [self.version] * world_size  # lower bound for the next gradient of each rank
        self._choose_mode(is_first=state is None)

    @property
    def facts(self) -> LagFacts:
        """What is known now."""
        known = [lag for lag in self._lags if lag is not None]
        mean = sum(known) / len(known) if known else 0.0
        spread = max(known) - min(known) if known else 0.0
        return LagFacts(self.version, self.mode, self.version - self._since, mean, spread)

    @property
    def state(self) -> dict[str, Any]:
        """Everything it remembers after :meth:`settle`, as JSON has it."""
        return {
            "version": self.version,
            "mode": self.mode,
            "since": self._since,
            "history": [_saved(event) for event in self.history],
            "lags": list(self._lags),
        }

    def next(self, waiting: Sequence[int], finished: Container[int]) -> list[int] | None:
        """The ranks of the next entry; None if it has to wait for a rank.

        Args:
            waiting: The ranks whose gradients are there, in the order in which they came.
            finished: Ranks that send no gradients until the log is settled.
        """
        ranks = [rank for rank in range(self._world_size) if rank not in finished]
        last = self.version - self._staleness  # the base of a gradient that must not wait
        chosen = [rank for rank in ranks if self.mode == "epochs" or self._bases[rank] <= last]
        wanted = min(self._buffer, len(ranks)) if self.mode == "buffered" else 1
        chosen += [rank for rank in waiting if rank not in chosen][: max(0, wanted - len(chosen))]
        is_there = len(chosen) >= wanted and all(rank in waiting for rank in chosen)
        return sorted(chosen) if chosen and is_there else None

    def add(self, entry: Iterable[Applied]) -> None:
        """Add an entry, and choose the mode of the next one."""
        entry = list(entry)
        for each in entry:
            lag = self._lag(each, entry)
            before = self._lags[each.rank]
            smooth = lag if before is None else before + _SMOOTHING * (lag - before)
            self._lags[each.rank] = smooth
            self._bases[each.rank] = self.version + 1
        self._sizes.append(len(entry))
        self.version += 1
        self._choose_mode()

    def settle(self) -> None:
        """All ranks have the current version of the weights."""
        self._bases = [self.version] * self._world_size

    def _lag(self, of: Applied, entry: Sequence[Applied]) -> float:
        others = max(1, self._world_size - 1)
        if self.mode == "epochs":
            ratios = [of.seconds / each.seconds for each in entry if each is not of]
            return sum(ratios) / max(1, len(ratios))
        stale = self.version - of.version
        return sum(list(self._sizes)[-stale:]) / others if stale else 0.0

    def _choose_mode(self, is_first: bool = False) -> None:
        facts = self.facts
        mode = self._choose(facts)
        check_mode(mode)
        if mode != self.mode or is_first:
            self.mode, self._since = mode, self.version
            self.history.append(LagEvent(self.version, mode, facts.mean, facts.spread))


def _saved(event: LagEvent) -> dict[str, Any]:
    values = asdict(event)
    return {"version": values.pop("steps"), **values}


def _event_in(saved: Mapping[str, Any]) -> LagEvent:
    """What :func:`_saved` was given."""
    values = dict(saved)
    return LagEvent(values.pop("version"), **values)
