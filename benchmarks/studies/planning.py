"""How long the planner takes for a call that it has not met: one core, no ranks needed.

A made-up Fabric for each row; all collectives, two sizes each, each by a new planner. The memory is
the peak of the process that planned, less what it had before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness import facts, report

SIZES = (1 << 16, 1 << 26)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", *ROOTED, "barrier")
# Ranks: the most milliseconds that a call may take.
GOALS = {64: 20, 256: 200, 1024: 1000, 4096: 5000}
GOAL_MIB = 200
RATE = 125e6

OPTIONS = {"ranks": list(GOALS)}


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for ranks in args.ranks:
        for name, fabric in fabrics(ranks).items():
            with ProcessPoolExecutor(1) as pool:
                yield {"ranks": ranks, "fabric": name, **pool.submit(measured, fabric).result()}


def fabrics(ranks: int) -> dict[str, str]:
    """Fabrics of that many ranks as JSON, by name."""
    return {
        "one switch": fabric(ranks, 1, 1),
        "one switch, hosts of 8 ranks": fabric(ranks // 8, 1, 8),
        "8 racks": fabric(ranks, 8, 1),
        "8 racks, hosts of 8 ranks": fabric(ranks // 8, 8, 8),
    }


def fabric(hosts: int, racks: int, ranks_per_host: int) -> str:
    """Hosts of 1 Gbit/s; a rack's cable carries as much as two of them."""
    return json.dumps(
        {
            "q7x2_fabric": 1,
            "hosts": [
                {
                    "name": f"h{host}",
                    "cores": ranks_per_host,
                    "rack": host * racks // hosts,
                    "egress": RATE,
                    "ingress": RATE,
                }
                for host in range(hosts)
            ],
            "racks": [{"up": 2 * RATE, "down": 2 * RATE} if racks > 1 else {}] * racks,
            "ranks": [rank // ranks_per_host for rank in range(hosts * ranks_per_host)],
        }
    )


def measured(fabric: str) -> dict[str, Any]:
    """All calls on one Fabric: the slowest of them, and the memory of all."""
    from q7x2._core.extension import load

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    choose = load().choose
    choose("barrier", 1, fabric)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls = []
    for collective in COLLECTIVES:
        for size in SIZES:
            choice = choose(collective, size, fabric, 0 if collective in ROOTED else -1)
            calls.append({"collective": collective, "size": size, **choice})
    slowest = max(calls, key=lambda call: call["planning_seconds"])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"calls": calls, "slowest": slowest, "memory_mib": (after - before) / 1024}


def _reduced(row: dict[str, Any]) -> dict[str, Any]:
    """The all-reduce of the larger size."""
    case: dict[str, Any] = next(
        call
        for call in row["calls"]
        if (call["collective"], call["size"]) == ("all_reduce", SIZES[1])
    )
    return case


def _goal(row: dict[str, Any]) -> str:
    return f"{GOALS[row['ranks']]:,} ms" if row["ranks"] in GOALS else ""


def _slowest(row: dict[str, Any]) -> str:
    return f"{row['slowest']['collective']}, {report.size(row['slowest']['size'])}"


COLUMNS: report.Columns = (
    ("ranks", lambda row: f"{row['ranks']:,}"),
    ("network", lambda row: row["fabric"]),
    ("slowest call", _slowest),
    ("planned in", lambda row: report.duration(row["slowest"]["planning_seconds"])),
    ("goal", _goal),
    ("memory", lambda row: f"{row['memory_mib']:.0f} MiB"),
    ("64 MiB all-reduce by", lambda row: _reduced(row)["algorithm"]),
    ("slice", lambda row: report.size(_reduced(row)["slice_bytes"])),
)


def row_lines(row: dict[str, Any]) -> Iterator[str]:
    seconds = report.duration(row["slowest"]["planning_seconds"])
    yield (
        f"{row['ranks']:,} ranks, {row['fabric']}: {_slowest(row)} in {seconds} "
        f"(goal: {_goal(row) or 'none'}), {row['memory_mib']:.0f} MiB"
    )


def write_more(out: Path, results: dict[str, Any]) -> None:
    """The page beside the JSON."""
    out.with_suffix(".md").write_text(
        "# Planning\n\n"
        "How long does the planner take for a call that it has not met? One core; every\n"
        f"collective with {' and '.join(report.size(size) for size in SIZES)}, of which the\n"
        f"slowest is named; memory for all of them, of which the goal is {GOAL_MIB} MiB at most.\n"
        f"`python -m benchmarks planning` measures it again. {facts.describe(results['machine'])}"
        f"\n\n{report.markdown_of(COLUMNS, results['rows'])}"
    )
