"""Two groups used from two threads: does a long call of one delay the short ones of the other?

Two ranks of one host make all-reduces of 4 bytes in one group. Meanwhile a second thread of each
rank does nothing, or all-reduces of 64 MiB in another group, or arithmetic of its own that has
nothing to do with q7x2. The last one is the bound: it shows what the system's scheduler makes of
two busy threads a rank. The three take turns.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.harness import ranks
from benchmarks.harness.arguments import chosen, option

GOAL = 3.0  # times the latency beside nothing
BESIDE = ("nothing", "all_reduce", "arithmetic")
TURN_S = 0.3
RANKS = 2
FLOATS = 16 << 20

OPTIONS = {"turns": option(15, "of each")}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    timeout_s = 60 + 3 * args.turns
    times = ranks.run(__name__, chosen(args, "turns"), RANKS, timeout_s=timeout_s)
    idle = statistics.median(times[BESIDE[0]])
    rows = []
    for beside in BESIDE:
        ordered = sorted(times[beside])
        median = statistics.median(ordered)
        p99 = ordered[len(ordered) * 99 // 100]
        rows.append({"beside": beside, "median": median, "p99": p99, "ratio": median / idle})
    return {"rows": rows}


def lines(body: Mapping[str, Any]) -> list[str]:
    return [
        *(
            f"beside {row['beside']:10}: median {row['median'] * 1e6:7.1f} µs "
            f"({row['ratio']:.2f} x), 99 % {row['p99'] * 1e6:8.1f} µs"
            for row in body["rows"]
        ),
        f"goal: the median beside all_reduce at most {GOAL} x that beside nothing",
    ]


def rank_main(spec: dict[str, Any]) -> dict[str, list[float]]:
    """Returns the seconds of the short calls, by what the second thread did."""
    dist.init_process_group("q7x2")
    others = dist.new_group()
    small, large = torch.ones(1), torch.ones(FLOATS)
    addend = torch.zeros(FLOATS)
    times: dict[str, list[float]] = {beside: [] for beside in BESIDE}
    for turn in range(spec["turns"] + 1):
        for beside in BESIDE:
            stop = threading.Event()
            helper = threading.Thread(target=_occupy, args=(beside, stop, large, addend, others))
            helper.start()
            taken = _turn(small)
            stop.set()
            helper.join()
            if turn > 0:  # the first one warms up
                times[beside] += taken
    return times


def _turn(small: Any) -> list[float]:
    """All-reduces until both ranks have had their time, and what each took."""
    times = []
    end = time.perf_counter() + TURN_S
    # The sum tells the ranks alike that one of them is at its end.
    is_over = False
    while not is_over:
        small.fill_(time.perf_counter() >= end)
        begin = time.perf_counter()
        dist.all_reduce(small)
        times.append(time.perf_counter() - begin)
        is_over = bool(small.item())
    return times


def _occupy(beside: str, stop: threading.Event, large: Any, addend: Any, group: Any) -> None:
    over = torch.zeros(1)
    while beside == "all_reduce" and not over.item():
        over.fill_(stop.is_set())
        dist.all_reduce(over, group=group)  # both ranks stop after the same call
        dist.all_reduce(large, dist.ReduceOp.AVG, group=group)
    while beside == "arithmetic" and not stop.is_set():
        large.add_(addend)
