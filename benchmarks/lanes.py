"""Lanes: one process reduces and encodes 16 MiB with one thread, and with a second one that helps.

The two take turns, each time in a process of its own. The pieces of work are jobs as collectives
have them (docs/architecture.md). It needs two idle processors.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

from benchmarks import facts, report

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
TARGET = "q7x2_lanes_bench"
GOAL = 1.6


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks lanes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "dev", help="by ./dev build")
    parser.add_argument("--out", type=Path, default=RESULTS / "lanes.json")
    args = parser.parse_args(argv)
    if len(os.sched_getaffinity(0)) < 2:
        raise ValueError("lanes need two processors, and this process may use one")

    subprocess.run(["cmake", "--build", args.build, "--target", TARGET], check=True)
    rounds: dict[str, list[dict[str, float]]] = {"1": [], "2": []}
    for _ in range(args.rounds):
        for threads, of_threads in rounds.items():
            of_threads.append(_run(args.build / TARGET, lanes=int(threads) - 1))

    machine = facts.collect()
    console = report.console()
    report.print_facts(console, machine)
    rows = []
    for what in rounds["1"][0]:
        one, two = (statistics.median(each[what] for each in rounds[n]) for n in ("1", "2"))
        rows.append({"what": what, "one": one, "two": two, "ratio": one / two, "goal": GOAL})
        console.print(
            f"{what:8} 16 MiB  one thread {one * 1e3:7.2f} ms   two {two * 1e3:7.2f} ms"
            f"   {one / two:5.2f} x  (goal {GOAL} x)",
            markup=False,
        )
    report.write_json(args.out, machine, {"rows": rows, "rounds": rounds})


def _run(program: Path, lanes: int) -> dict[str, float]:
    environment = {**os.environ, "Q7X2_LANES": str(lanes)}
    done = subprocess.run([program], env=environment, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
