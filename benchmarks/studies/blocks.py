"""What leaving out blocks of zeros saves: all-reduces of tensors with blocks of zeros, and without.

Virtual hosts with one rank each sum the same tensors in the same processes and in turns:
``q7x2.all_reduce(tensor, "blocks")`` in a group with servers and in one without, the dense
all-reduce of q7x2, and that of Gloo. Each rank has its own blocks, or all have the same ones. It
needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import arguments, facts, launch, report
from benchmarks.harness.lab import Lab, Topology
from benchmarks.studies.servers import open_store, start_server, stop_server

RESULTS = Path(__file__).parents[1] / "results"
OURS, SERVED, DENSE, GLOO = "blocks, q7x2", "blocks, servers", "dense, q7x2", "dense, gloo"
WAYS = (OURS, SERVED, DENSE, GLOO)
OWN, SAME = "own", "same"  # blocks: each rank's, or those of all
BLOCK = 256  # fp32 elements: a block of q7x2
# By the share of blocks of zeros, where ranks have their own ones: against what, and how many times
# as fast it shall be.
GOALS = {
    OURS: {0.95: (GLOO, 4.0), 0.99: (GLOO, 10.0), 0.0: (DENSE, 1 / 1.05)},
    SERVED: {0.95: (GLOO, 7.0), 0.99: (GLOO, 15.0), 0.0: (DENSE, 1 / 1.05)},
}


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
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--server-rate", default="1gbit", help="of each server's NIC")
    parser.add_argument("--size", default="64M", help="of the tensor, for example 64M")
    parser.add_argument("--zeros", default="0.95,0.99,0", help="shares of blocks that are zero")
    parser.add_argument("--patterns", default=f"{OWN},{SAME}", help="whose blocks are not zero")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "blocks.json")
    args = parser.parse_args(argv)
    spec = {
        "bytes": arguments.parse_size(args.size),
        "zeros": shares(args.zeros),
        "patterns": arguments.names(args.patterns),
        "rounds": args.rounds,
        "hosts": args.hosts,
        "servers": args.servers,
    }
    topology = Topology(hosts=args.hosts + args.servers, rate=args.rate)
    with Lab(topology) as lab, tempfile.TemporaryDirectory() as d:
        for server in range(args.servers):
            lab.set_rate(args.hosts + server, args.server_rate)
        out = Path(d) / "cases.json"
        worker = [sys.executable, "-m", "benchmarks.studies.blocks", json.dumps(spec), str(out)]
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": launch.python_path(), "XDG_CACHE_HOME": d}
        env["Q7X2_REFINE"] = "0"  # too few calls for q7x2 to settle on the fastest algorithm
        lab.run(worker, env=env, timeout_s=3600)
        cases = json.loads(out.read_text())
    machine = facts.collect()
    report.write_json(
        args.out,
        machine,
        {**spec, "rate": args.rate, "server_rate": args.server_rate, "cases": cases},
    )
    console = report.console()
    report.print_facts(console, machine)
    for case in cases:
        console.print(sentence(case), markup=False)


def sentence(case: dict[str, Any]) -> str:
    """A case for a person: the times of all ways, and what the goals are."""
    ways = case["ways"]
    text = f"{case['zeros']:.0%} zero, {case['pattern']} blocks: " + report.ways(ways, list(ways))
    for way in (OURS, SERVED):
        if way not in ways:
            continue
        against, goal = GOALS[way].get(case["zeros"], (GLOO, None))
        ratio = ways[against]["seconds"] / ways[way]["seconds"]
        text += f"; {way} {ratio:.2f} x as fast as {against}"
        if goal is not None and case["pattern"] == OWN:
            text += f", goal {goal:.2f} x"
    return text + f"; {case['served']} calls were served"


# ---- one process --------------------------------------------------------------------------------


def process_main(spec: dict[str, Any], out: Path) -> None:
    store = open_store(is_master=os.environ["RANK"] == "0")
    if int(os.environ["RANK"]) < spec["hosts"]:
        rank_main(spec, out, store)
    else:
        server_main(spec, store)


def server_main(spec: dict[str, Any], store: Any) -> None:
    import torch.distributed  # noqa: F401  # so that the server starts quickly

    own = int(os.environ["RANK"]) - spec["hosts"]
    store.wait(["begin"])
    where = ["--master-addr", os.environ["MASTER_ADDR"], "--master-port", os.environ["MASTER_PORT"]]
    server = start_server([*where, "--name", f"s{own}"])
    store.set(f"ready {own}", "")
    store.wait(["end"])
    stop_server(server, signal.SIGTERM)


def rank_main(spec: dict[str, Any], out: Path, store: Any) -> None:
    """Rank 0 writes the figures of each share of zeros to ``out``."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=spec["hosts"])
    groups = {name: dist.new_group(backend=name) for name in ("q7x2", "gloo")}
    store.set("begin", "")
    store.wait([f"ready {server}" for server in range(spec["servers"])])
    if spec["servers"]:
        groups[SERVED] = dist.new_group(backend="q7x2")
    cases = [
        measure(zeros, pattern, spec, groups)
        for zeros in spec["zeros"]
        for pattern in spec["patterns"]
        if zeros or pattern == OWN  # without zeros all ranks have the same blocks
    ]
    if rank == 0:
        out.write_text(json.dumps(cases))
    dist.barrier()
    store.set("end", "")
    dist.destroy_process_group()


def calls_of(groups: dict[str, Any]) -> dict[str, Callable[[Any], object]]:
    import q7x2
    import torch.distributed as dist

    calls = {
        OURS: lambda tensor: q7x2.all_reduce(tensor, "blocks", group=groups["q7x2"]),
        SERVED: lambda tensor: q7x2.all_reduce(tensor, "blocks", group=groups[SERVED]),
        DENSE: lambda tensor: dist.all_reduce(tensor, group=groups["q7x2"]),
        GLOO: lambda tensor: dist.all_reduce(tensor, group=groups["gloo"]),
    }
    return {way: calls[way] for way in WAYS if way != SERVED or SERVED in groups}


def served_calls(groups: dict[str, Any]) -> int:
    import q7x2

    if SERVED not in groups:
        return 0
    return int(q7x2.describe(groups[SERVED]).servers[0]["calls"])


def draw(zeros: float, pattern: str, size: int, rank: int) -> Any:
    """Return ``size`` bytes of fp32, of whose blocks ``zeros`` are zero."""
    import torch

    generator = torch.Generator().manual_seed(rank)
    blocks = -(-size // (4 * BLOCK))
    tensor = torch.randn(blocks, BLOCK, generator=generator)
    if pattern == SAME:
        generator.manual_seed(0)
    chosen = torch.randperm(blocks, generator=generator)[: round(zeros * blocks)]
    tensor[chosen] = 0
    return tensor.flatten()[: size // 4].contiguous()


def measure(
    zeros: float, pattern: str, spec: dict[str, Any], groups: dict[str, Any]
) -> dict[str, Any]:
    """Medians over the rounds; the time of a call is that of the slowest rank."""
    import torch
    import torch.distributed as dist

    from benchmarks.harness.schedule import bytes_sent

    given = draw(zeros, pattern, spec["bytes"], dist.get_rank())
    calls = calls_of(groups)
    names = tuple(calls)
    served = served_calls(groups)
    figures: dict[str, list[list[float]]] = {name: [] for name in names}
    results: dict[str, Any] = {}
    for turn in range(spec["rounds"] + 1):  # the first one is not counted
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
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
    for name in names:
        if not torch.allclose(results[name], results[GLOO], rtol=1e-4, atol=1e-5):
            raise ValueError(f"{name} has another sum than {GLOO} with {zeros:.0%} zeros")
    ways = {}
    for name, rows in figures.items():
        medians = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
        ways[name] = dict(zip(("seconds", "bytes_sent", "cpu_seconds"), medians, strict=True))
        ways[name]["all_seconds"] = [row[0] for row in rows[1:]]
    served = served_calls(groups) - served
    return {"zeros": zeros, "pattern": pattern, "ways": ways, "served": served}


if __name__ == "__main__":
    process_main(json.loads(sys.argv[1]), Path(sys.argv[2]))
