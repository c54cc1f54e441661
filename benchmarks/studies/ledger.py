"""What the ledger costs: calls and DDP steps with it on and off, in turns; and long reports.

`overhead`: two ranks make all-reduces of 4 B, 64 KiB and 16 MiB, and steps of a small DDP model.
The ledgers of both write or pause in turns of the same calls, in an order drawn by chance. A ledger
sleeps, but for one write when a second of the clock begins. So what is compared are windows around
these moments. A pair of windows gives one ratio of mean times, and as a share of the second one
overhead; published are the median and its 95 % interval.

`report`: how long `q7x2 report` takes, and how large its page is, for a long run. The ledgers are
made for it: each step of each rank has some all-reduces, a loss now and then, and one sample.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from q7x2.ledger import writer as ledger_writer
from q7x2.ledger.writer import PERIOD, to_next_write
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import ROOT, ranks, timing
from benchmarks.harness.arguments import option
from benchmarks.harness.inference import median_interval

GOAL = 0.01
REPORT_GOAL_S, REPORT_GOAL_BYTES = 20.0, 5_000_000
# Seconds: of a window around a write; between looks at the clock.
WINDOW = 0.1
CHUNK = 0.005
BUCKETS = 4  # of a step that is reported
SIZES = {"4 B": 4, "64 KiB": 64 << 10, "16 MiB": 16 << 20}
OPTIONS = {
    "pairs": option(100, "of turns, for each kind"),
    "steps": option(10_000, "of the run that is reported"),
    "ranks": option(8, "of the run that is reported"),
}


def overhead(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per kind of work: seconds without the ledger, and the overhead with its interval."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**ranks.UNREFINED, "Q7X2_LEDGER": folder}
        spec = {"pairs": args.pairs, "seed": random.randrange(1 << 30)}
        turns = ranks.run(__name__, spec, 2, env=env, timeout_s=120 + 40 * args.pairs)
    return [row_of(kind, each["off"], each["on"]) for kind, each in turns.items()]


def row_of(kind: str, off: list[float], on: list[float]) -> dict[str, Any]:
    ratios = [(b / a - 1) * WINDOW / PERIOD for a, b in zip(off, on, strict=True)]
    interval = dict(zip(("overhead", "low", "high"), median_interval(ratios), strict=True))
    return {"kind": kind, "pairs": len(ratios), "seconds_off": statistics.median(off), **interval}


def measure_report(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds, processor seconds, and bytes of the page."""
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    from ledger_files import Training

    size = {"ranks": args.ranks, "steps": args.steps}
    with tempfile.TemporaryDirectory() as folder:
        training = Training(**size, buckets=BUCKETS, loss_every=10, watts=100)
        training.write(Path(folder))
        page = Path(folder) / "report.html"
        command = [sys.executable, "-m", "q7x2", "report", folder, "--out", str(page)]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = timing.timed(
            partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
        )
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            **size,
            "all_reduces_per_step": BUCKETS,
            "seconds": seconds,
            "cpu_seconds": now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime,
            "bytes": page.stat().st_size,
        }


PARTS = {"overhead": overhead, "report": measure_report}


def lines(body: Mapping[str, Any]) -> Iterator[str]:
    for row in body.get("overhead", ()):
        yield (
            f"{row['kind']:20} {row['seconds_off'] * 1e6:10.1f} µs without the ledger, with it "
            f"{100 * row['overhead']:+.2f} % ({100 * row['low']:+.2f} to {100 * row['high']:+.2f})"
        )
    if "overhead" in body:
        yield f"goal: at most {100 * GOAL:g} %"
    if row := body.get("report"):
        yield (
            f"report of {row['steps']:,} steps of {row['ranks']} ranks: {row['seconds']:.1f} s "
            f"(CPU {row['cpu_seconds']:.1f} s), {row['bytes']:,} bytes; goal: at most "
            f"{REPORT_GOAL_S:g} s and {REPORT_GOAL_BYTES:,} bytes"
        )


def rank_main(spec: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Returns the mean times of the turns."""
    pairs = spec["pairs"]
    dist.init_process_group("q7x2")
    order = random.Random(spec["seed"])  # the same on all ranks
    turns = {}
    for kind, size in SIZES.items():
        tensor = torch.ones(size // 4)
        work = partial(dist.all_reduce, tensor)
        turns[f"all_reduce of {kind}"] = _turns(work, pairs, order)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    ddp = DistributedDataParallel(model)
    batch = torch.randn(32, 256)

    def step() -> None:
        ddp(batch).square().mean().backward()

    turns["DDP step"] = _turns(step, pairs, order)
    return turns


class _Work:
    """Calls that all ranks make equally often: rank 0 says when it is enough."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._is_enough = torch.zeros(1)
        self._at_once = 10
        at_once = torch.tensor([max(int(CHUNK / self.run(for_seconds=0.5)), 1)])
        dist.broadcast(at_once, 0)
        self._at_once = int(at_once)

    def run(self, for_seconds: float) -> float:
        """The mean seconds of a call."""
        calls = 0
        begin = time.perf_counter()
        self._is_enough.zero_()
        while not self._is_enough:
            for _ in range(self._at_once):
                self._call()
            calls += self._at_once
            self._is_enough.fill_(time.perf_counter() - begin >= for_seconds)
            dist.broadcast(self._is_enough, 0)
        return (time.perf_counter() - begin) / calls


def _turns(call: Callable[[], Any], pairs: int, order: random.Random) -> dict[str, list[float]]:
    """The mean seconds of a call in each turn's window, without the ledger and with it."""
    work = _Work(call)
    ledger = ledger_writer.of_process(os.environ["Q7X2_LEDGER"])
    ledger.pause()
    turns: dict[str, list[float]] = {"off": [], "on": []}
    work.run(for_seconds=to_next_write(time.time()))
    for _ in range(pairs):
        for state in order.sample(("off", "on"), 2):
            # The write of this second is over. The next one writes what nearly a second left.
            if state == "on":
                ledger.resume()
            work.run(for_seconds=to_next_write(time.time()) - WINDOW / 4)
            turns[state].append(work.run(for_seconds=WINDOW))
            if state == "on":
                ledger.pause()
    ledger.resume()
    return turns
