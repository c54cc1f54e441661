"""Device: for how long does a call on device tensors keep the host, while the other rank is late?

Two ranks call ``all_reduce`` on tensors of the stand-in accelerator (docs/testing.md). Rank 1 comes
20 ms late, so the communication takes 20 ms at least. Rank 0 measures how long ``all_reduce`` and
``wait()`` keep its host, and how long the stream takes to have the result.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import facts, report

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
LATE = 0.020
GOAL = 1e-3


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks device", description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of the tensor")
    parser.add_argument("--out", type=Path, default=RESULTS / "device.json")
    args = parser.parse_args(argv)

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        results: Any = context.Queue()
        ranks = [
            context.Process(target=_rank, args=(rank, f"file://{directory}/store", args, results))
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise ValueError("a rank failed, see above")
        trials = results.get()

    machine = facts.collect()
    console = report.console()
    report.print_facts(console, machine)
    host = [trial["host"] for trial in trials]
    stream = [trial["stream"] for trial in trials]
    console.print(
        f"all_reduce + wait() of {args.bytes} bytes: the host is kept {_ms(host)}, the result is"
        f" there after {_ms(stream)} (goal: {GOAL * 1e3:g} ms of the host)",
        markup=False,
    )
    report.write_json(args.out, machine, {"bytes": args.bytes, "late": LATE, "trials": trials})


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.3f} ms (at most {max(seconds) * 1e3:.3f} ms)"


def _rank(rank: int, store: str, args: argparse.Namespace, results: Any) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    import q7x2
    import stand_in
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    q7x2.register_accelerator(stand_in.NAME, stand_in.load().stream_calls())
    dist.init_process_group("q7x2", init_method=store, rank=rank, world_size=2)
    tensor = torch.ones(args.bytes // 4, device=stand_in.NAME)
    trials = []
    for _ in range(args.trials + 5):
        torch.accelerator.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        if rank == 1:
            time.sleep(LATE)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        host = time.perf_counter() - begin
        torch.accelerator.synchronize()
        trials.append({"host": host, "stream": time.perf_counter() - begin})
    dist.destroy_process_group()
    if rank == 0:
        results.put(trials[5:])
