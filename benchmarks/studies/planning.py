"""How long the planner takes for a call that it has not met: one core, no ranks needed.

A made-up Fabric for each row; all collectives, two sizes each, each by a new planner. The memory is
the peak of the process that planned, less what it had before.
"""

from __future__ import annotations

import json
import os
import resource
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.harness import facts, report, study

SIZES = (1 << 16, 1 << 26)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    *ROOTED,
    "barrier",
)
# Ranks: the most milliseconds that a call may take.
GOALS = {64: 20, 256: 200, 1024: 1000, 4096: 5000}
GOAL_MIB = 200
RATE = 125e6


def main(argv: list[str]) -> None:
    parser = study.parser(__name__, __doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(GOALS))
    args = parser.parse_args(argv)

    rows = []
    for ranks in args.ranks:
        for name, fabric in fabrics(ranks).items():
            with ProcessPoolExecutor(1) as pool:
                row = {"ranks": ranks, "fabric": name, **pool.submit(measure, fabric).result()}
            rows.append(row)
    machine = facts.collect()
    report.write_json(args.out, machine, {"rows": rows})
    args.out.with_suffix(".md").write_text(describe(machine, rows))
    print(table(rows))


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


def measure(fabric: str) -> dict[str, Any]:
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


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = []
    for row in rows:
        slowest = row["slowest"]
        goal = GOALS.get(row["ranks"])
        reduce = next(
            call
            for call in row["calls"]
            if call["collective"] == "all_reduce" and call["size"] == SIZES[1]
        )
        lines.append(
            [
                f"{row['ranks']:,}",
                row["fabric"],
                f"{slowest['collective']}, {report.size(slowest['size'])}",
                report.duration(slowest["planning_seconds"]),
                f"{goal:,} ms" if goal else "",
                f"{row['memory_mib']:.0f} MiB",
                reduce["algorithm"],
                report.size(reduce["slice_bytes"]),
            ]
        )
    head = ("ranks", "network", "slowest call", "planned in", "goal", "memory")
    return report.markdown([*head, "64 MiB all-reduce by", "slice"], lines)


def describe(machine: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The page beside the JSON."""
    return (
        "# Planning\n\n"
        "How long does the planner take for a call that it has not met? One core; every\n"
        f"collective with {' and '.join(report.size(size) for size in SIZES)}, of which the\n"
        f"slowest is named; memory for all of them, of which the goal is {GOAL_MIB} MiB at most.\n"
        f"`python -m benchmarks planning` measures it again. {facts.describe(machine)}\n\n"
        + table(rows)
    )
