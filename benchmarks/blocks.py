"""What leaving out blocks of zeros saves: all-reduces of tensors with blocks of zeros, and without.

Virtual hosts with one rank each sum the same tensors in three ways, in the same processes and in
turns: ``q7x2.all_reduce(tensor, "blocks")``, the dense all-reduce of q7x2, and that of Gloo. Each
rank has its own blocks. It needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import arguments, facts, launch, report
from benchmarks.lab import Lab, Topology

RESULTS = Path(__file__).parent / "results"
OURS, DENSE, GLOO = "blocks, q7x2", "dense, q7x2", "dense, gloo"
WAYS = (OURS, DENSE, GLOO)
BLOCK = 256  # fp32 elements: a block of q7x2
# By the share of blocks of zeros: against what, and how many times as fast `OURS` shall be.
GOALS = {0.95: (GLOO, 4.0), 0.99: (GLOO, 10.0), 0.0: (DENSE, 1 / 1.05)}


def shares(text: str) -> tuple[float, ...]:
    """Parse ``"0.95,0"``; raises ValueError for a number that is no share."""
    parsed = tuple(float(part) for part in arguments.names(text))
    if not parsed or not all(0 <= share <= 1 for share in parsed):
        raise ValueError(f"--zeros must be shares from 0 to 1, got {text!r}")
    return parsed


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks blocks", description=__doc__)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", default="100mbit", help="of each host's NIC, as tc spells it")
    parser.add_argument("--size", default="64M", help="of the tensor, for example 64M")
    parser.add_argument("--zeros", default="0.95,0.99,0", help="shares of blocks that are zero")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "blocks.json")
    args = parser.parse_args(argv)
    spec = {
        "bytes": arguments.parse_size(args.size),
        "zeros": shares(args.zeros),
        "rounds": args.rounds,
    }
    with Lab(Topology(hosts=args.hosts, rate=args.rate)) as lab, tempfile.TemporaryDirectory() as d:
        out = Path(d) / "cases.json"
        worker = [sys.executable, "-m", "benchmarks.blocks", json.dumps(spec), str(out)]
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": launch.python_path(), "XDG_CACHE_HOME": d}
        env["Q7X2_REFINE"] = "0"  # too few calls for q7x2 to settle on the fastest algorithm
        lab.run(worker, env=env, timeout_s=3600)
        cases = json.loads(out.read_text())
    machine = facts.collect()
    report.write_json(
        args.out, machine, {**spec, "hosts": args.hosts, "rate": args.rate, "cases": cases}
    )
    console = report.console()
    report.print_facts(console, machine)
    for case in cases:
        console.print(sentence(case), markup=False)


def sentence(case: dict[str, Any]) -> str:
    """A case for a person: the times of all ways, and what the goal is."""
    ways = case["ways"]
    text = f"{case['zeros']:.0%} zero: " + report.ways(ways, WAYS)
    if case["zeros"] in GOALS:
        against, goal = GOALS[case["zeros"]]
        ratio = ways[against]["seconds"] / ways[OURS]["seconds"]
        text += f"; {ratio:.2f} x as fast as {against}, goal {goal:.2f} x"
    return text


# ---- one rank -----------------------------------------------------------------------------------


def rank_main(spec: dict[str, Any], out: Path) -> None:
    """Rank 0 writes the figures of each share of zeros to ``out``."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {name: dist.new_group(backend=name) for name in ("q7x2", "gloo")}
    cases = [measure(zeros, spec, calls_of(groups)) for zeros in spec["zeros"]]
    if dist.get_rank() == 0:
        out.write_text(json.dumps(cases))
    dist.barrier()
    dist.destroy_process_group()


def calls_of(groups: dict[str, Any]) -> dict[str, Callable[[Any], object]]:
    import q7x2
    import torch.distributed as dist

    return {
        OURS: lambda tensor: q7x2.all_reduce(tensor, "blocks", group=groups["q7x2"]),
        DENSE: lambda tensor: dist.all_reduce(tensor, group=groups["q7x2"]),
        GLOO: lambda tensor: dist.all_reduce(tensor, group=groups["gloo"]),
    }


def draw(zeros: float, size: int, rank: int) -> Any:
    """Return ``size`` bytes of fp32, of whose blocks ``zeros`` are zero: others on each rank."""
    import torch

    generator = torch.Generator().manual_seed(rank)
    blocks = -(-size // (4 * BLOCK))
    tensor = torch.randn(blocks, BLOCK, generator=generator)
    chosen = torch.randperm(blocks, generator=generator)[: round(zeros * blocks)]
    tensor[chosen] = 0
    return tensor.flatten()[: size // 4].contiguous()


def measure(
    zeros: float, spec: dict[str, Any], calls: dict[str, Callable[[Any], object]]
) -> dict[str, Any]:
    """Medians over the rounds; the time of a call is that of the slowest rank."""
    import torch
    import torch.distributed as dist

    from benchmarks.schedule import bytes_sent

    given = draw(zeros, spec["bytes"], dist.get_rank())
    figures: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    results: dict[str, Any] = {}
    for turn in range(spec["rounds"] + 1):  # the first one is not counted
        for name in WAYS[turn % len(WAYS) :] + WAYS[: turn % len(WAYS)]:
            results[name] = given.clone()
            dist.barrier()
            sent, cpu, begin = bytes_sent(), time.process_time(), time.perf_counter()
            calls[name](results[name])
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
            dist.barrier()
            slowest = torch.tensor([seconds, float(bytes_sent() - sent)], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            total = torch.tensor([cpu], dtype=torch.float64)
            dist.all_reduce(total)
            figures[name].append([*slowest.tolist(), *total.tolist()])
    for name in WAYS:
        if not torch.allclose(results[name], results[GLOO], rtol=1e-4, atol=1e-5):
            raise ValueError(f"{name} has another sum than {GLOO} with {zeros:.0%} zeros")
    ways = {}
    for name, rows in figures.items():
        medians = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
        ways[name] = dict(zip(("seconds", "bytes_sent", "cpu_seconds"), medians, strict=True))
        ways[name]["all_seconds"] = [row[0] for row in rows[1:]]
    return {"zeros": zeros, "ways": ways}


if __name__ == "__main__":
    rank_main(json.loads(sys.argv[1]), Path(sys.argv[2]))
