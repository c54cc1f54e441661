"""What the ledger costs: calls and DDP steps with it on and off, in turns; and long reports.

`overhead`: two ranks make all-reduces of 4 B, 64 KiB and 16 MiB, and steps of a small DDP model.
A turn is a fresh pair of processes, with Q7X2_LEDGER set or not, in an order drawn by chance. A
pair of turns gives one ratio of medians; published are the median ratio and its bootstrap interval.

`report`: see ledger_report.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import facts, launch, ledger_report, report
from benchmarks.processes import free_port, run_ranks

RESULTS = Path(__file__).parent / "results"
GOAL = 0.01
RESAMPLES = 2000
SIZES = {"4 B": 4, "64 KiB": 64 << 10, "16 MiB": 16 << 20}
PARTS = ("overhead", "report")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ledger", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pairs", type=int, default=30, help="of turns")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn, for each kind")
    parser.add_argument("--steps", type=int, default=10_000, help="of the run that is reported")
    parser.add_argument("--ranks", type=int, default=8, help="of the run that is reported")
    parser.add_argument("--out", type=Path, default=RESULTS / "ledger.json")
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        worker(args.worker)
        return
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    machine = facts.collect()
    if "overhead" in args.parts:
        found["overhead"] = overhead(args.pairs, args.seconds)
        for row in found["overhead"]:
            print(sentence(row))
        print(f"goal: at most {100 * GOAL:g} %")
    if "report" in args.parts:
        found["report"] = ledger_report.measure(args.steps, args.ranks, buckets=4)
        print(ledger_report.sentence(found["report"]))
    report.write_json(args.out, machine, {part: found[part] for part in PARTS if part in found})


def overhead(pairs: int, seconds: float) -> list[dict[str, Any]]:
    """One row per kind of work: seconds off and on, and the ratio with its interval."""
    off: dict[str, list[float]] = {}
    on: dict[str, list[float]] = {}
    for _ in range(pairs):
        for turns in random.sample((off, on), 2):
            for kind, median in _turn(seconds, is_on=turns is on).items():
                turns.setdefault(kind, []).append(median)
    return [_row(kind, off[kind], on[kind]) for kind in off]


def _row(kind: str, off: list[float], on: list[float]) -> dict[str, Any]:
    ratios = [b / a - 1 for a, b in zip(off, on, strict=True)]
    resampled = sorted(
        statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return {
        "kind": kind,
        "pairs": len(ratios),
        "seconds_off": statistics.median(off),
        "overhead": statistics.median(ratios),
        "low": resampled[RESAMPLES // 40],
        "high": resampled[-RESAMPLES // 40],
    }


def _turn(seconds: float, *, is_on: bool) -> dict[str, float]:
    """By kind: the median of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        common = {
            **{key: value for key, value in os.environ.items() if key != "Q7X2_LEDGER"},
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": launch.python_path(),
            "Q7X2_REFINE": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": "2",
            **({"Q7X2_LEDGER": folder} if is_on else {}),
        }
        command = [sys.executable, "-m", "benchmarks", "ledger", "--worker", str(seconds)]
        ranks = [{**common, "RANK": str(rank)} for rank in range(2)]
        results = run_ranks([command] * 2, ranks, 120 + 20 * seconds)
        if bool(list(Path(folder).iterdir())) != is_on:
            raise RuntimeError(f"the ledger is not {'on' if is_on else 'off'}")
    medians: dict[str, float] = json.loads(results[0].lines[-1])
    return medians


def worker(seconds: float) -> None:
    """One rank: prints its medians as JSON."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("q7x2")
    medians = {}
    for kind, size in SIZES.items():
        tensor = torch.ones(size // 4)
        medians[f"all_reduce of {kind}"] = _median(lambda t=tensor: dist.all_reduce(t), seconds)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    ddp = DistributedDataParallel(model)
    batch = torch.randn(32, 256)

    def step() -> None:
        ddp(batch).square().mean().backward()

    medians["DDP step"] = _median(step, seconds)
    dist.destroy_process_group()
    print(json.dumps(medians))


def _median(work: Callable[[], Any], seconds: float) -> float:
    """Of one call. All ranks make equally many calls: rank 0 says how many."""
    import torch
    import torch.distributed as dist

    begin = time.perf_counter()
    for _ in range(10):
        work()
    taken = (time.perf_counter() - begin) / 10
    count = torch.tensor([max(int(seconds / taken), 10)])
    dist.broadcast(count, 0)
    times = []
    for _ in range(int(count)):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def sentence(row: dict[str, Any]) -> str:
    """The row for a person."""
    return (
        f"{row['kind']:20} {row['seconds_off'] * 1e6:10.1f} µs without the ledger, with it "
        f"{100 * row['overhead']:+.2f} % ({100 * row['low']:+.2f} to {100 * row['high']:+.2f})"
    )
