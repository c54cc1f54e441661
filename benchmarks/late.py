"""Times of steps while one rank is stopped now and then: DDP, backup workers, gradient coding.

Ranks on this machine train a small network. A process outside of them stops one rank for some
seconds in every period (SIGSTOP). Each method trains for the same time with the same stops. The
figures are those of the rank that is never stopped: how many steps it took, and the longest one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import facts, launch, report
from benchmarks.processes import run_ranks

RESULTS = Path(__file__).parent / "results"
METHODS = ("DDP", "backup workers", "gradient coding")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks late", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--stopped", type=int, default=0, help="the rank that is stopped")
    parser.add_argument("--stop", type=float, default=5.0, help="seconds that it is stopped")
    parser.add_argument("--period", type=float, default=20.0, help="seconds between two stops")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each method")
    parser.add_argument("--width", type=int, default=256, help="of the network")
    parser.add_argument("--batch", type=int, default=64, help="of a rank")
    parser.add_argument("--out", type=Path, default=RESULTS / "late.json")
    args = parser.parse_args(argv)
    if not 0 < args.stop < args.period:
        raise ValueError(f"--stop must be more than 0 and less than --period, got {args.stop}")
    if not 0 <= args.stopped < args.ranks:
        raise ValueError(f"--stopped must be a rank, got {args.stopped}")
    names = ("ranks", "stopped", "stop", "period", "seconds", "width", "batch")
    spec = {name: getattr(args, name) for name in names}
    figures = {method: measure(spec, method) for method in METHODS}
    machine = facts.collect()
    report.write_json(args.out, machine, {**spec, "methods": figures})
    console = report.console()
    report.print_facts(console, machine)
    for method, each in figures.items():
        console.print(
            f"{method:16} {each['steps']:6} steps, median {report.duration(each['median'])}, "
            f"longest {report.duration(each['longest'])}, replicas equal: {each['equal']}",
            markup=False,
        )


def measure(spec: dict[str, Any], method: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="q7x2-late-") as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.late", json.dumps(spec), method, str(out)]
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": launch.python_path()}
        environments = launch.rank_environments(spec["ranks"], env)
        stopper = Stopper(spec["stop"], spec["period"])
        commands = [command] * spec["ranks"]
        try:
            run_ranks(commands, environments, spec["seconds"] + 300, on_line=stopper.hear)
        finally:
            stopper.end()
        figures: dict[str, Any] = json.loads(out.read_text())
        return figures


class Stopper:
    """Stops and continues a process, from when it says its number until it says that it is over."""

    def __init__(self, stop: float, period: float) -> None:
        self._stop, self._period = stop, period
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def hear(self, _: int, line: str) -> None:
        words = line.split()
        if words[:1] == ["stop-me"]:
            self._thread = threading.Thread(target=self._run, args=(int(words[1]),))
            self._thread.start()
        elif words[:1] == ["over"]:
            self._over.set()

    def end(self) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()

    def _run(self, pid: int) -> None:
        while not self._over.wait(self._period - self._stop):
            try:
                os.kill(pid, signal.SIGSTOP)
                self._over.wait(self._stop)
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                return


# ---- one rank -----------------------------------------------------------------------------------


def rank_main(spec: dict[str, Any], method: str, out: Path) -> None:
    """A rank that is never stopped writes the figures to ``out``."""
    import q7x2
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("q7x2")
    rank, witness = dist.get_rank(), (spec["stopped"] + 1) % dist.get_world_size()
    torch.manual_seed(0)
    width = spec["width"]
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"DDP": None, "backup workers": {}, "gradient coding": {"copies": 2}}[method]
    ddp = DistributedDataParallel(model) if options is None else None
    quorum = q7x2.Quorum(model, sgd, **options) if options is not None else None

    def batch(step: int, part: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + part)
        return torch.randn(spec["batch"], width, generator=generator)

    def step(number: int) -> None:
        if quorum is None:
            sgd.zero_grad()
            assert ddp is not None
            ddp(batch(number, rank)).square().mean().backward()
            sgd.step()
            return
        for part in quorum.parts:
            (model(batch(number, part.index)).square().mean() * part.weight).backward()
        quorum.step()

    # All ranks take the same number of steps, which the first ones tell: as many as fit.
    begin = time.monotonic()
    for number in range(5):
        step(number)
    each = torch.tensor((time.monotonic() - begin) / 5)
    dist.all_reduce(each, dist.ReduceOp.MAX)
    last = max(10, round(spec["seconds"] / float(each)))
    if rank == spec["stopped"]:
        print("stop-me", os.getpid(), flush=True)
    times, number = [], 5 if quorum is None else quorum.steps
    while number < last:
        begin = time.monotonic()
        step(number)
        times.append(time.monotonic() - begin)
        number = number + 1 if quorum is None else quorum.steps
    if rank == witness:
        print("over", flush=True)
    if quorum is not None:
        quorum.finish()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = weights.clone()
    dist.broadcast(first, 0)
    equal = torch.tensor(int(torch.equal(first, weights)))
    dist.all_reduce(equal, dist.ReduceOp.MIN)
    if rank == witness:
        times.sort()
        figures = {
            "steps": len(times),
            "median": times[len(times) // 2],
            "longest": times[-1],
            "equal": bool(equal),
        }
        out.write_text(json.dumps(figures))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    rank_main(json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
