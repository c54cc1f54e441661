"""How long a training step takes whose gathers overlap the next forward: a simulation.

In a step, two things are busy: this rank's processor computes, and its network carries one message
after another. A message is there its latency after the network has carried it. While both are
busy, each is slower by a factor that was measured, because messages need processor time as well.

The simulation goes from event to event: the end of a computation, of a message, of a latency.
Four steps are simulated, and the last one counts, in which nothing is left of how the first began.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from q7x2.overlap.early import split_early
from q7x2.overlap.layout import chunks_of

_STEPS = 3  # before the one that counts


@dataclass(frozen=True)
class BucketCosts:
    """A bucket of DDP.

    Attributes:
        ready: Seconds of computation from the end of forward until its gradients are there.
        names: Those of its parameters.
        begins: The first element of each parameter in the bucket, ascending.
        needed: For each parameter, the seconds of forward before the first module that needs it.
        length: The number of elements.
        element_size: Bytes of an element.
        slice_length: See :func:`chunks_of`.
    """

    ready: float
    names: tuple[str, ...]
    begins: tuple[int, ...]
    needed: tuple[float, ...]
    length: int
    element_size: int
    slice_length: int | None


@dataclass(frozen=True)
class StepCosts:
    """What a step of the training consists of, in seconds; the slowest rank's if they differ.

    Attributes:
        forward: The computation of a forward.
        buckets: Those of DDP, in the order of backward; the last one is ready when backward ends.
        step: The optimizer's step on all parameters.
        small_step: Its step on a few elements.
        other: Everything else between two forwards.
        wire: All-reduces of all buckets, while nothing is computed.
        latency: Time of a message without bytes.
        compute_slowdown: The factor by which computation is slower while messages are carried.
        wire_slowdown: The factor by which messages are slower meanwhile.
        ddp: A step of DDP, measured.
    """

    forward: float
    buckets: tuple[BucketCosts, ...]
    step: float
    small_step: float
    other: float
    wire: float
    latency: float
    compute_slowdown: float
    wire_slowdown: float
    ddp: float

    @property
    def compute(self) -> float:
        """A step without messages."""
        return self.forward + self.buckets[-1].ready + self.step + self.other


@dataclass(frozen=True, eq=False)
class Piece:
    """A chunk as the simulation sees it.

    Attributes:
        bucket: The index of its bucket.
        parameter: The first one of its parameters that forward needs.
        needed: When it does, in seconds of forward.
        length_of_all: Its elements.
        bytes: The same in bytes.
    """

    bucket: int
    parameter: str
    needed: float
    length_of_all: int
    bytes: int


@dataclass(frozen=True)
class Moments:
    """What happens to a chunk, in seconds since the end of forward.

    Attributes:
        parameter: See :class:`Piece`.
        bytes: See :class:`Piece`.
        ready: Its reduce-scatter begins.
        scattered: This rank has the gradients of its shard.
        stepped: The new weights of the shard are there.
        gathered: All ranks have all new weights.
        needed: The next forward would wait for them.
    """

    parameter: str
    bytes: int
    ready: float
    scattered: float
    stepped: float
    gathered: float
    needed: float


MOMENTS = ("ready", "scattered", "stepped", "gathered", "needed")
"""The names of those of :class:`Moments` that are times."""


def pieces_of(costs: StepCosts, chunk_bytes: int, ranks: int) -> list[Piece]:
    """The chunks of all buckets, in the order of backward."""
    pieces = []
    for index, bucket in enumerate(costs.buckets):
        most = max(1, chunk_bytes // bucket.element_size)
        for runs in chunks_of(bucket.length, ranks, most, bucket.slice_length):
            begin = min(first for each in runs for first, _ in each)
            end = max(last for each in runs for _, last in each)
            needed, name = min(_parameters_in(bucket, begin, end))
            size = (end - begin) * bucket.element_size
            pieces.append(Piece(index, name, needed, end - begin, size))
    return pieces


def _parameters_in(bucket: BucketCosts, begin: int, end: int) -> Iterator[tuple[float, str]]:
    ends = [*bucket.begins[1:], bucket.length]
    for name, first, last, needed in zip(
        bucket.names, bucket.begins, ends, bucket.needed, strict=True
    ):
        if first < end and begin < last:
            yield needed, name


def simulate(
    pieces: Sequence[Piece], costs: StepCosts, window: int, early: float, ranks: int
) -> tuple[float, list[Moments]]:
    """Seconds of a step, and what happens to each chunk, in the order of all-gathers."""
    return _Simulation(pieces, costs, window, early, ranks).run()


Event = Callable[[], None]


class _Simulation:
    def __init__(
        self, pieces: Sequence[Piece], costs: StepCosts, window: int, early: float, ranks: int
    ) -> None:
        self._costs, self._window, self._ranks = costs, window, ranks
        at_once, late = split_early(pieces, lambda piece: piece.needed, early)
        self._order = [*at_once, *late]
        self._early = len(at_once)
        self._numbers = {piece: number for number, piece in enumerate(self._order)}
        self._by_bucket: list[list[int]] = [[] for _ in costs.buckets]
        for piece in pieces:
            self._by_bucket[piece.bucket].append(self._numbers[piece])
        self._bytes = sum(piece.bytes for piece in pieces)
        self._now = 0.0
        self._queue: deque[tuple[float, Event]] = deque()  # messages: seconds, what follows
        self._timers: list[tuple[float, int, Event]] = []
        self._timers_made = 0
        self._origin = 0.0  # the end of the last forward
        self._forget()

    def _forget(self) -> None:
        """A backward begins."""
        count = len(self._order)
        self._moments: dict[str, list[float | None]] = {name: [None] * count for name in MOMENTS}
        self._next_gather = self._gathers = 0  # the next one to begin; how many are on their way

    def run(self) -> tuple[float, list[Moments]]:
        main = self._steps()
        computing, waits_for = 0.0, None
        sending, follows = 0.0, None
        while True:
            while computing <= 0 and (waits_for is None or self._at(*waits_for) is not None):
                request = next(main, None)
                if request is None:
                    return self._now - self._origin, self._all_moments()
                computing, waits_for = (
                    (request, None) if isinstance(request, float) else (0.0, request)
                )
            if follows is None and self._queue:
                sending, follows = self._queue.popleft()
            both = computing > 0 and follows is not None
            compute_rate = 1 / self._costs.compute_slowdown if both else 1.0
            wire_rate = 1 / self._costs.wire_slowdown if both else 1.0
            ends = [self._timers[0][0] - self._now] if self._timers else []
            ends += [computing / compute_rate] if computing > 0 else []
            ends += [sending / wire_rate] if follows is not None else []
            passed = max(0.0, min(ends))
            self._now += passed
            # An end that is as good as reached is reached: differences of floats never are.
            if computing > 0:
                computing -= passed * compute_rate
                computing = computing if computing > 1e-12 else 0.0
            if follows is not None:
                sending -= passed * wire_rate
                if sending <= 1e-12:
                    self._after(self._costs.latency, follows)
                    follows = None
            while self._timers and self._timers[0][0] <= self._now + 1e-12:
                heapq.heappop(self._timers)[2]()

    def _steps(self) -> Iterator[float | tuple[str, int]]:
        """The actions of the rank's thread: seconds of computation, or an event to wait for."""
        for step in range(_STEPS + 1):
            yield from self._forward(is_first=step == 0)
            if step == _STEPS:
                return
            self._origin = self._now
            self._forget()
            at = 0.0
            for bucket, numbers in zip(self._costs.buckets, self._by_bucket, strict=True):
                yield max(0.0, bucket.ready - at)
                at = max(at, bucket.ready)
                for number in numbers:
                    self._scatter(number)
            for number in range(self._early):
                yield "stepped", number
            for number in range(self._early, len(self._order)):
                yield "scattered", number
                yield self._step_seconds(number)
                self._stepped(number)
            yield self._costs.other

    def _forward(self, is_first: bool) -> Iterator[float | tuple[str, int]]:
        at = 0.0
        for number in sorted(range(len(self._order)), key=lambda n: self._order[n].needed):
            needed = self._order[number].needed
            yield needed - at
            at = needed
            if not is_first:
                self._note("needed", number)
                yield "gathered", number
        yield max(0.0, self._costs.forward - at)

    def _scatter(self, number: int) -> None:
        self._note("ready", number)

        def scattered() -> None:
            self._note("scattered", number)
            if number < self._early:
                self._after(self._step_seconds(number), lambda: self._stepped(number))

        self._queue.append((self._wire_seconds(number), scattered))

    def _stepped(self, number: int) -> None:
        self._note("stepped", number)
        self._start_gathers()

    def _start_gathers(self) -> None:
        stepped = self._moments["stepped"]
        while (
            self._gathers < self._window
            and self._next_gather < len(self._order)
            and stepped[self._next_gather] is not None
        ):
            number = self._next_gather
            self._next_gather += 1
            self._gathers += 1

            def gathered(number: int = number) -> None:
                self._note("gathered", number)
                self._gathers -= 1
                self._start_gathers()

            self._queue.append((self._wire_seconds(number), gathered))

    def _wire_seconds(self, number: int) -> float:
        # A reduce-scatter and an all-gather carry what an all-reduce carries.
        return self._costs.wire / 2 * self._order[number].bytes / self._bytes

    def _step_seconds(self, number: int) -> float:
        share = self._order[number].bytes / self._bytes / self._ranks
        return self._costs.small_step + self._costs.step * share

    def _after(self, seconds: float, event: Event) -> None:
        self._timers_made += 1  # among equal times, the first made is the first
        heapq.heappush(self._timers, (self._now + seconds, self._timers_made, event))

    def _note(self, name: str, number: int) -> None:
        self._moments[name][number] = self._now - self._origin

    def _at(self, name: str, number: int) -> float | None:
        return self._moments[name][number]

    def _all_moments(self) -> list[Moments]:
        found = []
        for number, piece in enumerate(self._order):
            at = {name: each[number] for name, each in self._moments.items()}
            found.append(Moments(piece.parameter, piece.bytes, **at))  # type: ignore[arg-type]
        return found
