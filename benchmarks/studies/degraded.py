"""What becomes slow while a job runs: its steps three seconds later, beside those of a fresh probe.

Virtual hosts all-reduce a buffer again and again. Then a route between two hosts, a private link,
the NIC of a host or the cable of a rack becomes slow. Steps count from three seconds after that. A
second job begins on the network as it is then, and probes it. Both take turns; a row is met if the
median step of the first one takes at most 1.2 times that of the second one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.harness import report, study
from benchmarks.harness.lab import Lab, Link, Topology

GOAL = 1.2
WARM_UP = 60  # steps; the first ones try several algorithms
GRACE = 3.0  # seconds
SECONDS = 5.0


@dataclass(frozen=True)
class Change:
    """Virtual hosts, what becomes slow, and how fast it was."""

    topology: Topology
    slow: Callable[[Lab], None]
    restore: Callable[[Lab], None]
    placement: tuple[int, ...] = (0, 1, 2, 3)


_SWITCH = Topology(hosts=4, rate="200mbit")
CHANGES = {
    "route": Change(
        _SWITCH,
        lambda lab: lab.set_pair_rate(0, 1, "20mbit"),
        lambda lab: lab.set_pair_rate(0, 1, "200mbit"),
    ),
    "private link": Change(
        Topology(
            hosts=4,
            rate="50mbit",
            links=tuple(Link(a, b, "200mbit") for a, b in ((0, 1), (1, 2), (2, 3), (3, 0))),
        ),
        lambda lab: lab.set_link_rate(0, "20mbit"),
        lambda lab: lab.set_link_rate(0, "200mbit"),
    ),
    "NIC": Change(
        _SWITCH, lambda lab: lab.set_rate(1, "40mbit"), lambda lab: lab.set_rate(1, "200mbit")
    ),
    "rack cable": Change(
        Topology(hosts=4, rate="200mbit", racks=2, uplink="100mbit"),
        lambda lab: lab.set_uplink(0, "20mbit"),
        lambda lab: lab.set_uplink(0, "100mbit"),
        (0, 2, 1, 3),
    ),
}


def main(argv: list[str]) -> None:
    parser = study.parser(__name__, __doc__)
    parser.add_argument("--only", nargs="+", choices=CHANGES, default=list(CHANGES))
    parser.add_argument("--kib", type=int, default=4096, help="of the buffer")
    parser.add_argument("--turns", type=int, default=3, help="of both jobs")
    args = parser.parse_args(argv)
    rows = ({"what": name, **measure(CHANGES[name], args)} for name in args.only)
    study.publish_rows(args.out, rows, lines)


def measure(change: Change, args: argparse.Namespace) -> dict[str, Any]:
    """Both jobs, in turns. Times in seconds."""
    jobs: list[dict[str, Any]] = []
    fresh: list[dict[str, Any]] = []
    with Lab(change.topology) as lab:
        for _ in range(args.turns):
            change.restore(lab)
            jobs.append(run(lab, change, args, "changing"))
            fresh.append(run(lab, change, args, "fresh"))
    return {"bytes": args.kib << 10, "changing": jobs, "fresh": fresh}


def run(lab: Lab, change: Change, args: argparse.Namespace, kind: str) -> dict[str, Any]:
    """What rank 0 has measured."""

    def on_line(rank: int, line: str) -> None:
        if rank == 0 and line == "slow\n":
            change.slow(lab)

    spec = {"kind": kind, "elements": args.kib << 8}
    found: dict[str, Any] = study.run(
        __name__,
        spec,
        lab=lab,
        placement=change.placement,
        env={"Q7X2_PROBE": "force"},
        on_line=on_line,
    )
    return found


def ratio(row: dict[str, Any]) -> float:
    """Of the medians of the turns."""
    jobs, fresh = ([median(job["after"]) for job in row[kind]] for kind in ("changing", "fresh"))
    return median(jobs) / median(fresh)


def lines(body: Mapping[str, Any]) -> list[str]:
    """For a person."""
    return [line for row in body["rows"] for line in _lines(row)]


def _lines(row: dict[str, Any]) -> list[str]:
    turns = [
        f"{1e3 * median(job['before']):.0f} -> {1e3 * median(job['after']):.0f} ms "
        f"({job['choice']}), fresh {1e3 * median(other['after']):.0f} ms ({other['choice']})"
        for job, other in zip(row["changing"], row["fresh"], strict=True)
    ]
    reasons = dict.fromkeys(reason for job in row["changing"] for reason in job["reasons"])
    verdict = "met" if ratio(row) <= GOAL else "NOT met"
    return [
        f"{row['what']}, {row['bytes'] >> 10} KiB: {ratio(row):.2f} x, {verdict}",
        *(f"  {each}" for each in (*turns, *reasons)),
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """For docs/planner_choice.md."""
    cells = []
    for row in rows:
        times = [
            f"{1e3 * median(median(job[moment]) for job in row[kind]):.0f} ms"
            for kind, moment in (("changing", "before"), ("changing", "after"), ("fresh", "after"))
        ]
        cells.append((row["what"], *times, f"{ratio(row):.2f}"))
    head = (
        "what becomes slow",
        "a step before",
        "3 s after it",
        "planned by a fresh probe",
        "ratio",
    )
    return report.markdown(head, cells)


# ---- one rank -----------------------------------------------------------------------------------


def rank_main(spec: dict[str, Any]) -> dict[str, Any] | None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("q7x2")
    tensor = torch.zeros(spec["elements"])

    def step() -> None:
        dist.all_reduce(tensor)

    before = [study.timed(step) for _ in range(WARM_UP)][-20:]
    if spec["kind"] == "changing":
        print("slow", flush=True)
        study.timed_for(GRACE, step, at_once=3)
    after = study.timed_for(SECONDS, step, at_once=3)
    kind = study.largest_all_reduces()
    found = {
        "before": before,
        "after": after,
        "choice": " or ".join(kind["events"][-1]["choices"]),
        "reasons": [change["reason"] for change in kind["rate_changes"]],
    }
    return found if dist.get_rank() == 0 else None
