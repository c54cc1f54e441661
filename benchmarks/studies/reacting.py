"""Steps of a job whose network changes: how soon q7x2 plans around a slow link, and back.

Virtual hosts all-reduce one buffer per step. In mid-run the link of one host becomes slow, and
later it recovers. The times are compared with those of the best fixed algorithm on the slow
network, and with what the slow link allows: its host must send the buffer once and receive it once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import q7x2
import torch
import torch.distributed as dist

from benchmarks.harness import ranks, timing
from benchmarks.harness.arguments import chosen, option
from tests.lab import Lab, Topology
from tests.lab.topology import bits_per_second

ALGORITHMS = ("ring", "sra", "shares", "blink", "aggregator", "halving_doubling", "multitree")
GUILTY = 1
GOAL_STEPS = 10  # until steps are fast again
GOAL_TIMES = 1.2  # of the best fixed algorithm's time
GOAL_LINK = 1.1  # of what the slow link allows, if that is the bound
WARM_UP = 60  # steps; the first ones try several algorithms
FIXED_STEPS = 12
PAUSE = 33.0  # seconds on a network as it is; two changes are 30 s apart

OPTIONS = {
    "hosts": [4, 8],
    "rate": "1gbit",
    "slow_rate": "200mbit",
    "mib": option(16, "of the buffer"),
    "seconds": option(600.0, "without a disturbance"),
    "pause": option(PAUSE, "seconds before each change"),
    "algorithms": list(ALGORITHMS),
}
KEY = itemgetter("hosts")


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All runs on each number of hosts. Times in seconds."""
    for hosts in args.hosts:
        with Lab(Topology(hosts=hosts, rate=args.rate)) as lab:
            lab.set_rate(GUILTY, args.slow_rate)
            fixed = {}
            for name in args.algorithms:
                env = {"Q7X2_ALGO": name, "Q7X2_PROBE": "force"}
                fixed[name] = statistics.median(run(lab, args, "fixed", env)["steps"][2:])
            lab.set_rate(GUILTY, args.rate)
            changing, calm = (run(lab, args, kind, {}) for kind in ("changing", "calm"))
        yield {
            "hosts": hosts,
            "bytes": args.mib << 20,
            "fixed": fixed,
            "link": (args.mib << 20) * 8 / bits_per_second(args.slow_rate),
            "changing": changing,
            "calm": {**calm, "steps": len(calm["steps"])},
        }


def run(lab: Lab, args: argparse.Namespace, kind: str, env: dict[str, str]) -> dict[str, Any]:
    rates = {"slow\n": args.slow_rate, "fast\n": args.rate}

    def on_line(rank: int, line: str) -> None:
        if rank == 0 and line in rates:
            lab.set_rate(GUILTY, rates[line])

    spec = {"kind": kind, "elements": args.mib << 18, **chosen(args, "pause", "seconds")}
    limits: dict[str, Any] = {"own_cache": False, "timeout_s": args.seconds + 1200}
    found: dict[str, Any] = ranks.run(__name__, spec, lab=lab, env=env, **limits, on_line=on_line)
    return found


def steps_until(times: list[float], limit: float) -> int | None:
    """After how many steps they take at most ``limit`` seconds, as a median of five."""
    for first in range(len(times) - 4):
        if times[first] <= limit and statistics.median(times[first : first + 5]) <= limit:
            return first
    return None


def judge(row: dict[str, Any]) -> dict[str, Any]:
    """The figures that have a goal."""
    changing = row["changing"]
    begin, middle = changing["marks"]
    fast, slow = changing["steps"][:begin], changing["steps"][begin:middle]
    recovered = changing["steps"][middle:]
    name = min(row["fixed"], key=row["fixed"].__getitem__)
    best = row["fixed"][name]
    # The link is the bound if even the best algorithm takes about what it allows.
    limit = min(GOAL_TIMES * best, max(GOAL_LINK * row["link"], best))
    usual = statistics.median(fast[-20:])
    return {
        "best_fixed": name,
        "limit": limit,
        "settled": statistics.median(slow[-10:]),
        "steps_to_slow_plan": steps_until(slow, limit),
        "usual": usual,
        "steps_back": steps_until(recovered, GOAL_TIMES * usual),
        "changes_when_calm": row["calm"]["changes"],
    }


def row_lines(row: dict[str, Any]) -> list[str]:
    found = judge(row)
    fixed = ", ".join(f"{name} {1e3 * each:.0f} ms" for name, each in row["fixed"].items())
    return [
        f"{row['hosts']} hosts, {row['bytes'] >> 20} MiB",
        f"  fixed algorithms on the slow network: {fixed}; "
        f"the link allows {1e3 * row['link']:.0f} ms",
        f"  steps until {1e3 * found['limit']:.0f} ms: {found['steps_to_slow_plan']}, then "
        f"{1e3 * found['settled']:.0f} ms (goal: {GOAL_STEPS} steps)",
        f"  steps until {GOAL_TIMES} x {1e3 * found['usual']:.0f} ms after the recovery: "
        f"{found['steps_back']} (goal: {GOAL_STEPS})",
        f"  changes without a disturbance: {found['changes_when_calm']} in "
        f"{row['calm']['seconds']:.0f} s (goal: 0)",
        *(f"  {each}" for each in row["changing"]["reasons"]),
    ]


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    dist.init_process_group("q7x2")
    tensor = torch.zeros(spec["elements"])
    begin = time.monotonic()

    def step() -> None:
        dist.all_reduce(tensor)

    marks: list[int] = []
    if spec["kind"] == "fixed":
        steps = [timing.timed(step) for _ in range(FIXED_STEPS)]
    elif spec["kind"] == "calm":
        steps = timing.timed_for(spec["seconds"], step, at_once=5)
    else:
        steps = [timing.timed(step) for _ in range(WARM_UP)]
        for line in ("slow", "fast"):
            steps += timing.timed_for(spec["pause"], step, at_once=5)
            marks.append(len(steps))
            print(line, flush=True)
        steps += timing.timed_for(spec["pause"], step, at_once=5)
    changes = [
        f"before call {change['call']}: {change['reason']}"
        for kind in q7x2.plan.plan_history()
        for change in kind["rate_changes"]
    ]
    found = {"steps": steps, "marks": marks, "seconds": time.monotonic() - begin}
    return {**found, "changes": len(changes), "reasons": changes}
