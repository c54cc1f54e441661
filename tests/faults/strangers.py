"""Steps of a training while a stranger attacks the ports of its ranks, beside steps without.

Two ranks on two virtual hosts train a small model. A third host, which is no member, holds idle
connections to all of their ports, or connects again and again without a pause (``flood``). The
flood needs a processor of the same machine. So there is a third phase, in which it hits a fourth
host, which has no ranks: what a stranger costs is the difference. Phases take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.harness import ROOT, ranks, report, timing
from benchmarks.harness.arguments import chosen, option
from tests.lab import Lab, Topology

GOAL = 1.05
PHASES = ("alone", "held", "flood", "flood elsewhere")
_PROGRAM = ROOT / "tests" / "python" / "strangers.py"
_STRANGER, _ELSEWHERE = 2, 3
_HELD = 200  # connections to each port

OPTIONS = {"turns": option(6, "of each phase"), "seconds": option(3.0, "of each turn")}


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Seconds of steps, and processor seconds of rank 0 per second, by phase."""
    with Lab(Topology(hosts=4, rate="1gbit")) as lab:
        stranger = _Stranger(lab, args.seconds)
        timeout_s = len(PHASES) * args.turns * args.seconds * 3 + 120
        limits: dict[str, Any] = {"timeout_s": timeout_s, "on_line": stranger.hears}
        found = ranks.run(__name__, chosen(args, *OPTIONS), lab=lab, **limits)
    yield {**found, "ports": stranger.ports, "held": stranger.held}


class _Stranger:
    """Does what a phase says as soon as rank 0 says which one has begun."""

    def __init__(self, lab: Lab, seconds: float) -> None:
        self.ports: dict[int, list[int]] = {}
        self.held = 0
        self._lab = lab
        self._seconds = seconds
        self._running: list[subprocess.Popen[str]] = []

    def hears(self, rank: int, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word == "ports":
            self.ports[rank] = json.loads(rest)
        if rank != 0 or word != "phase":
            return
        for each in self._running:
            each.kill()
            each.wait()
        self._running = []
        if rest == "held":
            for host, ports in self.ports.items():
                self._attack("hold", host, ports, str(_HELD))
                self.held += _HELD * len(ports)
        elif rest == "flood":
            for host, ports in self.ports.items():
                self._attack("flood", host, ports, str(self._seconds))
        elif rest == "flood elsewhere":
            for ports in self.ports.values():
                self._attack("flood", _ELSEWHERE, ports, str(self._seconds))

    def _attack(self, name: str, host: int, ports: list[int], argument: str) -> None:
        address = self._lab.topology.address(host)
        words = [name, address, ",".join(map(str, ports)), argument]
        self._running.append(
            subprocess.Popen(
                [*self._lab.enter(_STRANGER), sys.executable, str(_PROGRAM), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
        )


def row_lines(row: dict[str, Any]) -> Iterator[str]:
    """A step beside one without a stranger; that of a flood without what the flood itself takes."""
    steps = {phase: median(times) for phase, times in row["steps"].items()}
    for phase, seconds in steps.items():
        yield f"{phase}: {1e3 * seconds:.2f} ms per step, {row['cpu'][phase]:.3f} processors"
    for phase, beside in (("held", "alone"), ("flood", "flood elsewhere")):
        ratio = steps[phase] / steps[beside]
        yield f"{phase}: {ratio:.3f} x, {report.verdict(ratio <= GOAL)}"


def rank_main(spec: dict[str, Any]) -> dict[str, Any] | None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if int(os.environ["RANK"]) > 1:
        return None  # hosts without ranks
    os.environ["WORLD_SIZE"] = "2"
    dist.init_process_group("q7x2")
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    x = torch.randn(64, 256)

    def step() -> None:
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()

    for _ in range(50):
        step()
    sys.path.insert(0, str(_PROGRAM.parent))
    from strangers import listening

    print("ports", json.dumps(sorted({port for _, port in listening()})), flush=True)
    dist.barrier()
    steps: dict[str, list[float]] = {phase: [] for phase in PHASES}
    cpu = dict.fromkeys(PHASES, 0.0)
    wall = dict.fromkeys(PHASES, 0.0)
    for turn in range(spec["turns"] * len(PHASES)):
        phase = PHASES[turn % len(PHASES)]
        if dist.get_rank() == 0:
            print("phase", phase, flush=True)
        time.sleep(0.5)  # until the attack is under way
        used, begin = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        steps[phase] += timing.timed_for(spec["seconds"] - 1, step, at_once=10)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu[phase] += after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        wall[phase] += time.monotonic() - begin
    shares = {phase: cpu[phase] / wall[phase] for phase in PHASES}
    return {"steps": steps, "cpu": shares}
