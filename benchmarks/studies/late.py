"""Times of steps while one rank is stopped now and then: DDP, quorums, the modes of StaleSGD.

Ranks on this machine train a small network. A process outside of them stops one rank for some
seconds in every period (SIGSTOP). Each method trains for the same time with the same stops. The
figures are those of a rank that is never stopped: how many steps it took, and the longest one. With
StaleSGD a step is a backward of this rank, and others may apply more gradients meanwhile.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import ranks, report, timing
from benchmarks.harness.arguments import chosen, option

METHODS: dict[str, dict[str, Any]] = {  # options of DDP, QuorumSGD or StaleSGD
    "DDP": {},
    "backup workers": {},
    "gradient coding": {"copies": 2},
    "eager": {"mode": "eager"},
    "buffered": {"mode": "buffered"},
    "epochs": {"mode": "epochs"},
    "mode by lag": {},
}

OPTIONS = {
    "methods": option(list(METHODS), choices=list(METHODS)),
    "ranks": 4,
    "stopped": option(0, "the rank that is stopped"),
    "stop": option(5.0, "seconds that it is stopped"),
    "period": option(20.0, "seconds between two stops"),
    "seconds": option(120.0, "of each method"),
    "width": option(256, "of the network"),
    "batch": option(64, "of a rank"),
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    if not 0 < args.stop < args.period:
        raise ValueError(f"--stop must be more than 0 and less than --period, got {args.stop}")
    if not 0 <= args.stopped < args.ranks:
        raise ValueError(f"--stopped must be a rank, got {args.stopped}")
    spec = {name: value for name, value in chosen(args, *OPTIONS).items() if name != "methods"}
    figures = {}
    for method in args.methods:
        with Stopper(args.stop, args.period) as stopper:
            figures[method] = ranks.run(
                *(__name__, {**spec, "method": method}, args.ranks),
                timeout_s=args.seconds + 300,
                on_line=stopper.hear,
            )
    return {**spec, "methods": figures}


def lines(body: Mapping[str, Any]) -> list[str]:
    return [
        f"{method:16} {each['steps']:6} steps, median {report.duration(each['median'])}, "
        f"longest {report.duration(each['longest'])}, {each['updates']} updates, "
        f"replicas equal: {each['equal']}"
        for method, each in body["methods"].items()
    ]


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

    def __enter__(self) -> Stopper:
        return self

    def __exit__(self, *_: object) -> None:
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


class Training:
    """One method on this rank, as calls of :meth:`step`."""

    def __init__(self, spec: dict[str, Any], method: str) -> None:
        torch.manual_seed(0)
        self._spec, width, options = spec, spec["width"], METHODS[method]
        self.model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        self._sgd = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._ddp = self._quorum = self._late = None
        self._steps = 0  # of DDP
        if method == "DDP":
            self._ddp = DistributedDataParallel(self.model)
        elif method in ("backup workers", "gradient coding"):
            self._quorum = q7x2.late.QuorumSGD(self.model, self._sgd, **options)
        else:
            mode = options.get("mode", q7x2.late.FollowLag())
            self._late = q7x2.late.StaleSGD(self.model, self._sgd, mode=mode)

    @property
    def updates(self) -> int:
        """Updates of this rank's weights so far."""
        if self._late is not None:
            return self._late.steps
        return self._steps if self._quorum is None else self._quorum.steps

    def step(self, rank: int) -> None:
        if self._quorum is not None:
            for part in self._quorum.parts:
                (self._loss(self.model, part.index) * part.weight).backward()
            self._quorum.step()
        elif self._late is not None:
            self._loss(self.model, rank).backward()
            self._late.step()
        else:
            self._sgd.zero_grad()
            self._loss(self._ddp, rank).backward()
            self._sgd.step()
            self._steps += 1

    def finish(self) -> None:
        for each in (self._quorum, self._late):
            if each is not None:
                each.finish()

    def _loss(self, model: Any, part: int) -> Any:
        generator = torch.Generator().manual_seed(1000 * self.updates + part)
        x = torch.randn(self._spec["batch"], self._spec["width"], generator=generator)
        return model(x).square().mean()


def rank_main(spec: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the figures on a rank that is never stopped."""
    method = spec["method"]
    dist.init_process_group("q7x2")
    rank, witness = dist.get_rank(), (spec["stopped"] + 1) % dist.get_world_size()
    # All ranks train up to the same update, which a short training tells: as many as fit.
    training, begin = Training(spec, method), time.monotonic()
    while training.updates < 10:
        training.step(rank)
    training.finish()
    each = torch.tensor((time.monotonic() - begin) / training.updates)
    dist.all_reduce(each, dist.ReduceOp.MAX)
    last = max(10, round(spec["seconds"] / float(each)))
    training = Training(spec, method)
    if rank == spec["stopped"]:
        print("stop-me", os.getpid(), flush=True)
    times = []
    while training.updates < last:
        times.append(timing.timed(lambda: training.step(rank)))
    if rank == witness:
        print("over", flush=True)
    training.finish()
    weights = torch.cat([p.detach().flatten() for p in training.model.parameters()])
    first = weights.clone()
    dist.broadcast(first, 0)
    equal = torch.tensor(int(torch.equal(first, weights)))
    dist.all_reduce(equal, dist.ReduceOp.MIN)
    if rank != witness:
        return None
    times.sort()
    return {
        "steps": len(times),
        "median": times[len(times) // 2] if times else 0.0,
        "longest": times[-1] if times else 0.0,
        "updates": training.updates,
        "equal": bool(equal),
    }
