"""How ranks take times: ways of doing the same in turns, single calls, the slowest rank's time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from benchmarks.harness.schedule import bytes_sent

T = TypeVar("T")


def in_turns(
    ways: Mapping[str, Callable[[T], object]], rounds: int, given: Callable[[int], T]
) -> tuple[dict[str, dict[str, Any]], dict[str, T]]:
    """Measures ways of doing the same on all ranks: each once per round, and each first in turn.

    Args:
        ways: By name, the calls that are timed.
        rounds: Those that count. There is one before them.
        given: Makes the argument of each call, untimed, from the number of its round.

    Returns:
        By way: the medians of `seconds` (of the slowest rank), of `bytes_sent` (most of any host)
        and of `cpu_seconds` (of all ranks), and `all_seconds`. And the argument of each way's last
        call, which the call may have changed.
    """
    names = tuple(ways)
    figures: dict[str, list[list[float]]] = {name: [] for name in names}
    arguments: dict[str, T] = {}
    for turn in range(rounds + 1):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            arguments[name] = given(turn)
            dist.barrier()
            sent, cpu = bytes_sent(), time.process_time()
            seconds = timed(partial(ways[name], arguments[name]))
            cpu = time.process_time() - cpu
            dist.barrier()
            most = largest([seconds, float(bytes_sent() - sent)])
            total = torch.tensor([cpu], dtype=torch.float64)
            dist.all_reduce(total)
            figures[name].append([*most, *total.tolist()])
    found = {}
    for name, rows in figures.items():
        medians = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
        found[name] = dict(zip(("seconds", "bytes_sent", "cpu_seconds"), medians, strict=True))
        found[name]["all_seconds"] = [row[0] for row in rows[1:]]
    return found, arguments


def largest(figures: Sequence[float]) -> list[float]:
    """Each figure of the rank that has the largest one, such as the time of the slowest rank."""
    most = torch.tensor(figures, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    found: list[float] = most.tolist()
    return found


def mean(figures: Sequence[float]) -> list[float]:
    """The mean of each figure over the ranks."""
    total = torch.tensor(figures, dtype=torch.float64)
    dist.all_reduce(total)
    means: list[float] = (total / dist.get_world_size()).tolist()
    return means


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call on this rank."""
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def timed_for(seconds: float, call: Callable[[], object], at_once: int) -> list[float]:
    """Seconds of each call on this rank; all ranks stop together, when rank 0's time is over.

    Args:
        at_once: Calls between two looks at the clock.
    """
    found: list[float] = []
    end = time.monotonic() + seconds
    goes_on = torch.ones(1)
    while goes_on.item():
        found += [timed(call) for _ in range(at_once)]
        goes_on.fill_(float(time.monotonic() < end))
        dist.broadcast(goes_on, 0)
    return found


def median_seconds(
    calls: Mapping[str, Callable[[], object]], rounds: int, warm_ups: int = 0
) -> dict[str, float]:
    """The median time of each of some calls of this process, which take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm_ups + rounds):
        for name, call in calls.items():
            took = timed(call)
            if turn >= warm_ups:
                seconds[name].append(took)
    return {name: statistics.median(times) for name, times in seconds.items()}


def largest_all_reduces() -> dict[str, Any]:
    """What the default group's history has of its largest all-reduces without a codec."""
    import q7x2

    history = q7x2.plan.plan_history()
    kinds = [kind for kind in history if kind["collective"] == "all_reduce" and not kind["codec"]]
    return max(kinds, key=lambda kind: kind["bytes"])
