"""What becomes slow while a job runs: its steps three seconds later, beside those of a fresh probe.

Virtual hosts all-reduce a buffer again and again. Then a route between two hosts, a private link,
the NIC of a host or the cable of a rack becomes slow. Steps count from three seconds after that. A
second job begins on the network as it is then, and probes it. Both take turns; a row is met if the
median step of the first one takes at most 1.2 times that of the second one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import Any

from benchmarks.harness import ranks, report, timing
from benchmarks.harness.arguments import option
from tests.lab import Lab, Link, Topology

GOAL = 1.2
WARM_UP = 60  # steps; the first ones try several algorithms
GRACE = 3.0  # seconds
SECONDS = 5.0


@dataclass(frozen=True)
class Change:
    """Virtual hosts, and what becomes slow: `shape(lab, rate)` from `fast` to `slow`."""

    topology: Topology
    shape: Callable[[Lab, str], None]
    fast: str
    slow: str
    placement: tuple[int, ...] = (0, 1, 2, 3)


def _racks(uplink: str) -> Topology:
    return Topology(hosts=4, rate="200mbit", racks=2, uplink=uplink)


_SWITCH = Topology(hosts=4, rate="200mbit")
_RING = tuple(Link(a, (a + 1) % 4, "200mbit") for a in range(4))
_LINKS = Topology(hosts=4, rate="50mbit", links=_RING)
_ACROSS = (0, 2, 1, 3)
CHANGES = {
    "route": Change(_SWITCH, lambda lab, rate: lab.set_pair_rate(0, 1, rate), "200mbit", "20mbit"),
    "private link": Change(
        _LINKS, lambda lab, rate: lab.set_link_rate(0, rate), "200mbit", "20mbit"
    ),
    "NIC": Change(_SWITCH, lambda lab, rate: lab.set_rate(1, rate), "200mbit", "40mbit"),
    "rack cable": Change(
        _racks("100mbit"), lambda lab, rate: lab.set_uplink(0, rate), "100mbit", "20mbit", _ACROSS
    ),
    # No probe finds it: it carries all that its hosts send.
    "unknown cable": Change(
        _racks("400mbit"), lambda lab, rate: lab.set_uplink(0, rate), "400mbit", "40mbit", _ACROSS
    ),
}
OPTIONS = {
    "only": option(list(CHANGES), choices=CHANGES),
    "kib": option(4096, "of the buffer"),
    "turns": option(3, "of both jobs"),
}
KEY = itemgetter("what")


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Both jobs, in turns. Times in seconds."""
    for name in args.only:
        change = CHANGES[name]
        jobs: dict[str, list[dict[str, Any]]] = {"changing": [], "fresh": []}
        with Lab(change.topology) as lab:
            for _ in range(args.turns):
                change.shape(lab, change.fast)
                for kind, found in jobs.items():
                    found.append(run(lab, change, {"kind": kind, "elements": args.kib << 8}))
        yield {"what": name, "bytes": args.kib << 10, **jobs}


def run(lab: Lab, change: Change, spec: dict[str, Any]) -> dict[str, Any]:
    def on_line(rank: int, line: str) -> None:
        if rank == 0 and line == "slow\n":
            change.shape(lab, change.slow)

    where: dict[str, Any] = {"lab": lab, "placement": change.placement}
    env = {"Q7X2_PROBE": "force"}
    found: dict[str, Any] = ranks.run(__name__, spec, **where, env=env, on_line=on_line)
    return found


def ratio(row: dict[str, Any]) -> float:
    """Of the medians of the turns."""
    jobs, fresh = ([median(job["after"]) for job in row[kind]] for kind in ("changing", "fresh"))
    return median(jobs) / median(fresh)


def row_lines(row: dict[str, Any]) -> list[str]:
    turns = [
        f"{1e3 * median(job['before']):.0f} -> {1e3 * median(job['after']):.0f} ms "
        f"({job['choice']}), fresh {1e3 * median(other['after']):.0f} ms ({other['choice']})"
        for job, other in zip(row["changing"], row["fresh"], strict=True)
    ]
    reasons = dict.fromkeys(reason for job in row["changing"] for reason in job["reasons"])
    verdict = report.verdict(ratio(row) <= GOAL)
    return [
        f"{row['what']}, {row['bytes'] >> 10} KiB: {ratio(row):.2f} x, {verdict}",
        *(f"  {each}" for each in (*turns, *reasons)),
    ]


def _step(kind: str, moment: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{1e3 * median(median(job[moment]) for job in row[kind]):.0f} ms"


# For docs/planner_choice.md.
COLUMNS: report.Columns = (
    ("what becomes slow", lambda row: row["what"]),
    ("a step before", _step("changing", "before")),
    ("3 s after it", _step("changing", "after")),
    ("planned by a fresh probe", _step("fresh", "after")),
    ("ratio", lambda row: f"{ratio(row):.2f}"),
)


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("q7x2")
    tensor = torch.zeros(spec["elements"])

    def step() -> None:
        dist.all_reduce(tensor)

    before = [timing.timed(step) for _ in range(WARM_UP)][-20:]
    if spec["kind"] == "changing":
        print("slow", flush=True)
        timing.timed_for(GRACE, step, at_once=3)
    after = timing.timed_for(SECONDS, step, at_once=3)
    kind = timing.largest_all_reduces()
    return {
        "before": before,
        "after": after,
        "choice": " or ".join(kind["events"][-1]["choices"]),
        "reasons": [change["reason"] for change in kind["rate_changes"]],
    }
