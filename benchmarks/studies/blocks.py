"""What leaving out blocks of zeros saves: all-reduces of tensors with blocks of zeros, and without.

Virtual hosts with one rank each sum the same tensors in the same processes and in turns:
``q7x2.all_reduce(tensor, codec="blocks")`` in a group with servers and in one without, the dense
all-reduce of q7x2, and that of Gloo. Each rank has its own blocks, or all have the same ones. It
needs root.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

import q7x2
import torch
import torch.distributed as dist

from benchmarks.harness import arguments, ranks, report, servers, timing
from benchmarks.harness.arguments import chosen, option

OURS, SERVED, DENSE, GLOO = "blocks, q7x2", "blocks, servers", "dense, q7x2", "dense, gloo"
OWN, SAME = "own", "same"  # blocks: each rank's, or those of all
BLOCK = 256  # fp32 elements: a block of q7x2
# By the share of blocks of zeros, where ranks have their own ones: against what, and how many times
# as fast it shall be.
GOALS = {
    OURS: {0.95: (GLOO, 4.0), 0.99: (GLOO, 10.0), 0.0: (DENSE, 1 / 1.05)},
    SERVED: {0.95: (GLOO, 7.0), 0.99: (GLOO, 15.0), 0.0: (DENSE, 1 / 1.05)},
}
OPTIONS = {
    **servers.options(hosts=8, servers=2, size="64M", rounds=5),
    "zeros": option("0.95,0.99,0", "shares of blocks that are zero"),
    "patterns": option(f"{OWN},{SAME}", "whose blocks are not zero", type=arguments.names),
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    zeros = [float(part) for part in arguments.names(args.zeros)]
    if not zeros or not all(0 <= share <= 1 for share in zeros):
        raise ValueError(f"--zeros must be shares from 0 to 1, got {args.zeros!r}")
    spec = {"bytes": args.size, "zeros": zeros}
    spec |= chosen(args, "patterns", "rounds", "hosts", "servers")
    with servers.lab_with_servers(args.hosts, args.servers, args) as lab:
        cases = ranks.run(__name__, spec, lab=lab, env=ranks.UNREFINED)
    return {**spec, **chosen(args, "rate", "server_rate"), "cases": cases}


def row_lines(case: dict[str, Any]) -> Iterator[str]:
    """The times of all ways of a case, and what the goals are."""
    ways = case["ways"]
    yield f"{case['zeros']:.0%} zero, {case['pattern']} blocks; {case['served']} calls were served"
    yield from report.ways(ways)
    for way in (each for each in GOALS if each in ways):
        against, goal = GOALS[way].get(case["zeros"], (GLOO, None))
        ratio = ways[against]["seconds"] / ways[way]["seconds"]
        text = f"  {way} {ratio:.2f} x as fast as {against}"
        if goal is not None and case["pattern"] == OWN:
            text += f", goal {goal:.2f} x"
        yield text


def rank_main(spec: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the figures of each share of zeros."""
    store, rank = servers.open_store(), int(os.environ["RANK"])
    if rank >= spec["hosts"]:
        own = rank - spec["hosts"]
        store.wait(["begin"])
        server = servers.start_named_server(f"s{own}")
        store.set(f"ready {own}", "")
        store.wait(["end"])
        servers.stop_server(server)
        return None
    dist.init_process_group("gloo", store=store, rank=rank, world_size=spec["hosts"])
    groups = {name: dist.new_group(backend=name) for name in ("q7x2", "gloo")}
    store.set("begin", "")
    store.wait([f"ready {server}" for server in range(spec["servers"])])
    if spec["servers"]:
        groups[SERVED] = dist.new_group(backend="q7x2")
    cases = [
        compare(zeros, pattern, spec, groups)
        for zeros in spec["zeros"]
        for pattern in spec["patterns"]
        if zeros or pattern == OWN  # without zeros all ranks have the same blocks
    ]
    dist.barrier()
    store.set("end", "")
    dist.destroy_process_group()
    return cases


def served_calls(groups: dict[str, Any]) -> int:
    if SERVED not in groups:
        return 0
    return int(q7x2.describe(groups[SERVED]).servers[0]["calls"])


def draw(zeros: float, pattern: str, size: int, rank: int) -> Any:
    """Return ``size`` bytes of fp32, of whose blocks ``zeros`` are zero."""
    generator = torch.Generator().manual_seed(rank)
    blocks = -(-size // (4 * BLOCK))
    tensor = torch.randn(blocks, BLOCK, generator=generator)
    if pattern == SAME:
        generator.manual_seed(0)
    chosen = torch.randperm(blocks, generator=generator)[: round(zeros * blocks)]
    tensor[chosen] = 0
    return tensor.flatten()[: size // 4].contiguous()


def compare(
    zeros: float, pattern: str, spec: dict[str, Any], groups: dict[str, Any]
) -> dict[str, Any]:
    """Medians over the rounds; the time of a call is that of the slowest rank."""
    given = draw(zeros, pattern, spec["bytes"], dist.get_rank())
    served = served_calls(groups)
    calls = {
        OURS: lambda tensor: q7x2.all_reduce(tensor, codec="blocks", group=groups["q7x2"]),
        SERVED: lambda tensor: q7x2.all_reduce(tensor, codec="blocks", group=groups[SERVED]),
        DENSE: lambda tensor: dist.all_reduce(tensor, group=groups["q7x2"]),
        GLOO: lambda tensor: dist.all_reduce(tensor, group=groups["gloo"]),
    }
    if SERVED not in groups:
        del calls[SERVED]
    ways, results = timing.in_turns(calls, spec["rounds"], lambda _: given.clone())
    for name, result in results.items():
        if not torch.allclose(result, results[GLOO], rtol=1e-4, atol=1e-5):
            raise ValueError(f"{name} has another sum than {GLOO} with {zeros:.0%} zeros")
    served = served_calls(groups) - served
    return {"zeros": zeros, "pattern": pattern, "ways": ways, "served": served}
