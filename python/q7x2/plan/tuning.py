"""``tune``: measured times instead of predictions, for the calls that a program makes."""

from __future__ import annotations

import json
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q7x2.collectives.forced_algorithm import algorithm
from q7x2.fabric import arguments as fabric_arguments
from q7x2.plan.tuning_request import SIZES, TuneRequest, agreed_request, checked_request, on_all

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

_REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 200
# Algorithms beyond the number of candidates get a first trial of _FIRST_LOOK rounds, if the model
# sees them within the factor _NEAR of its best and there is time for them.
_FIRST_LOOK = 3
_NEAR = 2.0
# A round is a few calls back to back where that keeps the ranks together, since the first call
# after a barrier mostly measures how the ranks leave it.
_ROUND_SECONDS = 5e-3
_MOST_CALLS = 50


@dataclass(frozen=True)
class Measurement:
    """What :func:`tune` found about one algorithm for one collective and size.

    Attributes:
        collective: The name of the collective, such as ``"all_reduce"``.
        bytes: Bytes of the tensor, or of each rank's part in collectives with parts.
        algorithm: As :func:`algorithm` takes it, ``"aggregator:2"``.
        predicted: The seconds of a call that the cost model predicts.
        measured: The seconds of a call on the slowest rank; the median over the rounds.
        chosen: Whether calls of this size use it from now on, unless they force another one.
    """

    collective: str
    bytes: int
    algorithm: str
    predicted: float
    measured: float
    chosen: bool


def tune(
    group: ProcessGroup | None = None,
    collectives: Sequence[str] = ("all_reduce",),
    sizes: Iterable[int | str] = SIZES,
    candidates: int = 4,
    seconds: float = 1.0,
    out: str | PathLike[str] | None = None,
) -> list[Measurement]:
    """Measure the best candidates on the real ranks, and choose by what was measured from now on.

    >>> q7x2.tune(collectives=["all_reduce", "all_gather"], sizes=["64K", "16M"])

    A collective call: all ranks of the group must make it, with the same arguments, and none of
    them may have another thread call collectives of the group meanwhile. All ranks end with the
    same choices. Rank 0 keeps the times in the catalogue, where later jobs on these hosts find
    them, and each process keeps them for the groups that it makes later. A catalogue that cannot be
    written is a warning.

    Args:
        group: The process group, with q7x2 as a backend. The default group if None.
        collectives: Any of all_reduce, reduce, broadcast, all_gather, reduce_scatter and
            all_to_all. Rooted ones are measured with rank 0 as the root.
        sizes: Bytes of the tensor, or of each rank's part in collectives with parts: 65536 or
            "64K". The next power of two is measured, because all sizes up to it share a choice.
        candidates: How many algorithms to measure, each with its best parameter. They are the
            fastest in a few rounds with all algorithms that the model expects to be near its best.
            If there is no time for these rounds, the predicted times decide. For sums, the best
            algorithm for floats of 16 and 8 bits is also measured.
        seconds: About how long to measure for each collective and size. Every algorithm is
            measured in at least three rounds, however long that takes.
        out: Rank 0 writes the Fabric with the times here as well, for ``Q7X2_FABRIC``.

    Returns:
        All measurements, by collective, size and measured time; the same on all ranks.

    Raises:
        TypeError: An argument has the wrong type. Raised on all ranks.
        ValueError: An argument is wrong, or differs between ranks. Raised on all ranks.
        RuntimeError: A rank has no memory for the tensors, or rank 0 cannot write ``out``. Raised
            on all ranks.

    A process outside of ``group`` gets a warning and returns at once.
    """
    from q7x2._core.groups import backend_of, is_outside

    if is_outside(group):
        warnings.warn("tune: this process is not in the group", stacklevel=2)
        return []
    backend = backend_of(group, "tune")
    with algorithm(""):  # what the caller forces is for his own calls
        request = agreed_request(
            group, lambda: checked_request(collectives, sizes, candidates, seconds, out)
        )
        return Tuner(group, backend, request).run()


def _clamp(value: float, least: int, most: int) -> int:
    return int(min(max(value, least), most))


@dataclass(frozen=True)
class _Trial:
    time: dict[str, Any]
    """A tuned time as a Fabric has it; predicted, until it is measured."""
    is_wide: bool
    """The best one for floats of 16 and 8 bits: never left out."""

    @property
    def algorithm(self) -> str:
        return str(self.time["algorithm"])


class Tuner:
    """One call of ``tune``, on one rank."""

    def __init__(self, group: ProcessGroup | None, backend: Any, request: TuneRequest) -> None:
        import torch.distributed as dist

        from q7x2._core.extension import load

        self._extension = load()
        self._group = group
        self._backend = backend
        self._request = request
        self._rank = dist.get_rank(group)
        self._before: str = backend.fabric_json

    def run(self) -> list[Measurement]:
        trials: dict[tuple[str, int], list[_Trial]] = self._from_rank_0(
            self._trials, dict[tuple[str, int], list[_Trial]]
        )
        fabric: str
        results: list[Measurement]
        try:
            # Calls of a trial's size that force its algorithm are now cut as the trial says.
            self._backend.set_fabric(self._with_times(chain.from_iterable(trials.values())))
            kept = [
                trial
                for (collective, size), some in trials.items()
                for trial in self._measure(collective, size, some)
            ]
            measured, fabric, results = self._from_rank_0(
                lambda: self._conclude(kept), tuple[str, str, list[Measurement]]
            )
        except BaseException:
            self._backend.set_fabric(self._before)
            raise
        self._backend.set_fabric(fabric)
        self._extension.remember_times(measured)
        self._from_rank_0(lambda: self._keep(measured, fabric), type(None))
        return results

    def _from_rank_0(self, work: Callable[[], Any], kind: Any) -> Any:
        return on_all(self._group, lambda: work() if self._rank == 0 else None, kind)[0]

    def _with_times(self, trials: Iterable[_Trial]) -> str:
        """The group's Fabric with these tuned times alone."""
        return json.dumps(json.loads(self._before) | {"tuned": [each.time for each in trials]})

    def _trials(self) -> dict[tuple[str, int], list[_Trial]]:
        ranks = len(json.loads(self._before)["ranks"])
        return {
            (collective, size): [
                _Trial(
                    {
                        "collective": collective,
                        "ranks": ranks,
                        "bytes": size,
                        "algorithm": each["algorithm"],
                        "slice_bytes": each["slice_bytes"],
                        "window": each["window"],
                        "seconds": each["seconds"],
                    },
                    is_wide,
                )
                for each, is_wide in self._candidates(collective, size)
            ]
            for collective in self._request.collectives
            for size in self._request.sizes
        }

    def _candidates(self, collective: str, size: int) -> list[tuple[dict[str, Any], bool]]:
        """Those to try, and whether each is the best one for floats of 16 and 8 bits."""
        predicted = self._with_times([])
        # One parameter of each algorithm: the model errs less between aggregator:2 and aggregator:4
        # than between either and a tree.
        best: dict[str, dict[str, Any]] = {}
        # With few ranks many algorithms make the same Plan, and trials are few.
        seen: set[tuple[int, ...]] = set()
        for each in self._explain(collective, size, predicted):
            plan = (each["plans"], each["slice_bytes"], each["window"])
            if plan not in seen:
                seen.add(plan)
                best.setdefault(each["algorithm"].partition(":")[0], each)
        chosen: list[dict[str, Any]] = []
        looks = 0.0
        for each in best.values():
            looks += _FIRST_LOOK * each["seconds"]
            is_near = each["seconds"] <= _NEAR * next(iter(best.values()))["seconds"]
            if len(chosen) < self._request.candidates or (
                is_near and looks <= self._request.seconds
            ):
                chosen.append(each)
        if collective not in _REDUCTIONS:
            return [(each, False) for each in chosen]
        wide = self._explain(collective, size, predicted, wide=True)[0]
        if wide["algorithm"] not in (each["algorithm"] for each in chosen):
            chosen.append(wide)
        return [(each, each["algorithm"] == wide["algorithm"]) for each in chosen]

    def _explain(
        self, collective: str, size: int, fabric: str, *, wide: bool = False
    ) -> list[dict[str, Any]]:
        root = 0 if collective in fabric_arguments.ROOTED else -1
        candidates: list[dict[str, Any]] = self._extension.explain(
            collective, size, fabric, root, wide_accumulation=wide
        )
        return candidates

    def _measure(self, collective: str, size: int, trials: list[_Trial]) -> list[_Trial]:
        """The trials that were measured to the end, with their seconds."""
        calls: list[_Call] = []
        on_all(
            self._group,
            lambda: calls.append(make_call(collective, size, self._group)),
            type(None),
        )
        call = calls[0]
        # The first round also connects and makes the Plans.
        estimates = self._times(call, trials, rounds=1, repeat=1)
        if sum(estimates) < self._request.seconds:
            estimates = self._times(call, trials, rounds=1, repeat=1)
        repeat = 1
        # Where some ranks do not wait for others, those run ahead.
        if collective not in fabric_arguments.ROOTED:
            repeat = _clamp(_ROUND_SECONDS / min(estimates), 1, _MOST_CALLS)
        if len(trials) > self._request.candidates:
            estimates = self._times(call, trials, _FIRST_LOOK, repeat)
            fastest = sorted(estimates)[: self._request.candidates]
            kept = [
                (trial, seconds)
                for trial, seconds in zip(trials, estimates, strict=True)
                if trial.is_wide or seconds in fastest
            ]
            trials = [trial for trial, _ in kept]
            estimates = [seconds for _, seconds in kept]
        affordable = self._request.seconds / (repeat * sum(estimates))
        rounds = _clamp(affordable, _FEWEST_ROUNDS, _MOST_ROUNDS)
        times = self._times(call, trials, rounds, repeat)
        return [
            replace(trial, time=trial.time | {"seconds": seconds})
            for trial, seconds in zip(trials, times, strict=True)
        ]

    def _times(self, call: _Call, trials: list[_Trial], rounds: int, repeat: int) -> list[float]:
        """For each algorithm the seconds that a call usually took on the slowest rank."""
        mine = [[0.0] * len(trials) for _ in range(rounds)]
        for turn, row in enumerate(mine):
            # In an order drawn anew, the same on all ranks: nobody always follows the same other.
            for i in random.Random(turn).sample(range(len(trials)), len(trials)):
                row[i] = self.seconds_of(call, trials[i].algorithm, repeat)
        ranks = on_all(self._group, lambda: mine, list[list[float]])
        return usual_seconds(
            [[max(r[turn][i] for r in ranks) for i in range(len(trials))] for turn in range(rounds)]
        )

    def seconds_of(self, call: _Call, name: str, repeat: int) -> float:
        """The mean time of ``repeat`` calls on this rank with the algorithm ``name``."""
        self._backend.barrier().wait()
        seconds = 0.0
        with algorithm(name):
            for _ in range(repeat):
                # Into this rank's caches, as the program does that made the numbers.
                call.input.zero_()
                start = time.perf_counter()
                call.run()
                seconds += time.perf_counter() - start
        return seconds / repeat

    def _conclude(self, trials: list[_Trial]) -> tuple[str, str, list[Measurement]]:
        """The measured times as a Fabric, the group's Fabric with them, and the results."""
        measured = self._extension.canonical_fabric(self._with_times(trials))
        fabric = self._extension.learn_times(self._before, measured)
        results = []
        for collective in self._request.collectives:
            for size in self._request.sizes:
                # The planner itself says which one it takes.
                candidates = self._explain(collective, size, fabric)
                results += [
                    Measurement(
                        collective,
                        size,
                        each["algorithm"],
                        each["seconds"],
                        each["measured"],
                        each is candidates[0],
                    )
                    for each in candidates
                    if each["measured"] is not None
                ]
        return measured, fabric, results

    def _keep(self, measured: str, fabric: str) -> None:
        import torch.distributed as dist

        try:
            kept = self._extension.catalogue_times(measured)
            problem = "the group's fabric was not measured by a probe, so there is no entry of it"
        except dist.DistBackendError as error:
            kept, problem = False, str(error)
        if not kept and self._request.out is None:
            warnings.warn(
                f"tune: the times are in use but not in the catalogue: {problem}", stacklevel=2
            )
        if self._request.out is not None:
            try:
                Path(self._request.out).write_text(fabric)
            except OSError as error:
                raise RuntimeError(
                    f"tune: the times are in use, but cannot be written to {self._request.out}: "
                    f"{error}"
                ) from None


def usual_seconds(rounds: list[list[float]]) -> list[float]:
    """The usual time of each column of ``rounds``: one row per round, one column per algorithm.

    Each time is divided by the geometric mean of its round. The result is the median of these
    ratios, times the median round. Medians of raw times mix fast and slow phases of the machine.
    """
    logs = [[math.log(seconds) for seconds in row] for row in rounds]
    means = [statistics.fmean(row) for row in logs]
    beside = [[each - mean for each in row] for row, mean in zip(logs, means, strict=True)]
    middle = statistics.median(means)
    return [math.exp(middle + statistics.median(each)) for each in zip(*beside, strict=True)]


@dataclass(frozen=True)
class _Call:
    run: Callable[[], object]
    input: torch.Tensor


def make_call(collective: str, size: int, group: ProcessGroup | None) -> _Call:
    """The collective with tensors of its own, ``size`` bytes or parts of that; rank 0 is the root.

    Zeros, so that repeated sums stay what they are.
    """
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size(group)

    def zeros(parts: int = 1) -> torch.Tensor:
        return torch.zeros(parts * size // 4, dtype=torch.float32, device="cpu")

    one = zeros()
    if collective == "all_reduce":
        return _Call(lambda: dist.all_reduce(one, group=group), one)
    if collective == "reduce":
        return _Call(lambda: dist.reduce(one, group_dst=0, group=group), one)
    if collective == "broadcast":
        return _Call(lambda: dist.broadcast(one, group_src=0, group=group), one)
    whole = zeros(ranks)
    if collective == "all_to_all":
        received = zeros(ranks)
        return _Call(lambda: dist.all_to_all_single(received, whole, group=group), whole)
    parts = list(whole.chunk(ranks))
    if collective == "all_gather":
        return _Call(lambda: dist.all_gather(parts, one, group=group), one)
    return _Call(lambda: dist.reduce_scatter(one, parts, group=group), whole)
