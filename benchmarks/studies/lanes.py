"""Lanes: one process reduces and encodes 16 MiB with one thread, and with a second one that helps.

The two take turns, each time in a process of its own. The pieces of work are jobs as collectives
have them (docs/architecture.md). The third turn is the bound: two processes that know nothing of
each other do the same work at once, each with one thread on a processor of its own. Where memory
is what limits them, a second thread cannot help more. It needs two idle processors.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.harness.arguments import option

TARGET = "q7x2_lanes_bench"
GOAL = 1.6

OPTIONS = {
    "rounds": option(7, "turns of each"),
    "build": option(ROOT / "build" / "dev", "by ./dev build", type=Path),
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    if len(os.sched_getaffinity(0)) < 2:
        raise ValueError("lanes need two processors, and this process may use one")
    subprocess.run(["cmake", "--build", args.build, "--target", TARGET], check=True)
    program = args.build / TARGET
    rounds: dict[str, list[dict[str, float]]] = {"one": [], "two": [], "apart": []}
    for _ in range(args.rounds):
        rounds["one"] += _run(program, lanes=0)
        rounds["two"] += _run(program, lanes=1)
        rounds["apart"] += _run(program, lanes=0, processes=2)
    rows = []
    for what in rounds["one"][0]:
        row = {key: statistics.median(each[what] for each in rounds[key]) for key in rounds}
        row["ratio"], row["bound"] = row["one"] / row["two"], 2 * row["one"] / row["apart"]
        rows.append({"what": what, **row, "goal": GOAL})
    return {"rows": rows, "rounds": rounds}


def lines(body: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['what']:8} 16 MiB: one thread {row['one'] * 1e3:.2f} ms, two threads "
        f"{row['two'] * 1e3:.2f} ms, {row['ratio']:.2f} x (goal {GOAL} x; two processes "
        f"{row['bound']:.2f} x)"
        for row in body["rows"]
    ]


def _run(program: Path, lanes: int, processes: int = 1) -> list[dict[str, float]]:
    """Seconds by kind of work, of each of so many processes at once."""
    processors = sorted(os.sched_getaffinity(0))
    started = [
        subprocess.Popen(
            [program] if processes == 1 else ["taskset", "-c", str(processors[number]), program],
            env={**os.environ, "Q7X2_LANES": str(lanes)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    figures = [json.loads(process.communicate()[0]) for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"{program} failed")
    return figures
