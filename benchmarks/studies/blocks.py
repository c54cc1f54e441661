"""What leaving out blocks of zeros saves: all-reduces of tensors with blocks of zeros, and without.

Virtual hosts with one rank each sum the same tensors in the same processes and in turns:
``q7x2.all_reduce(tensor, codec="blocks")`` in a group with servers and in one without, the dense
all-reduce of q7x2, and that of Gloo. Each rank has its own blocks, or all have the same ones. It
needs root.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import q7x2
import torch
import torch.distributed as dist

from benchmarks.harness import arguments, report, study
from benchmarks.harness.servers import (
    add_arguments,
    lab_with_servers,
    open_store,
    start_named_server,
    stop_server,
)

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
    parser = study.parser(__name__, __doc__)
    add_arguments(parser, hosts=8, servers=2, size="64M", rounds=5)
    parser.add_argument("--zeros", default="0.95,0.99,0", help="shares of blocks that are zero")
    parser.add_argument("--patterns", default=f"{OWN},{SAME}", help="whose blocks are not zero")
    args = parser.parse_args(argv)
    spec = {
        "bytes": arguments.parse_size(args.size),
        "zeros": shares(args.zeros),
        "patterns": arguments.names(args.patterns),
        **study.chosen(args, "rounds", "hosts", "servers"),
    }
    with lab_with_servers(args.hosts, args.servers, args) as lab:
        # Too few calls for q7x2 to settle on the fastest algorithm.
        cases = study.run(__name__, spec, lab=lab, env={"Q7X2_REFINE": "0"})
    body = {**spec, **study.chosen(args, "rate", "server_rate"), "cases": cases}
    study.publish(args.out, body, lines)


def lines(body: Mapping[str, Any]) -> list[str]:
    """For a person."""
    return [line for case in body["cases"] for line in _lines(case)]


def _lines(case: dict[str, Any]) -> Iterator[str]:
    """The times of all ways of a case, and what the goals are."""
    ways = case["ways"]
    yield f"{case['zeros']:.0%} zero, {case['pattern']} blocks; {case['served']} calls were served"
    yield from report.ways(ways)
    for way in (OURS, SERVED):
        if way not in ways:
            continue
        against, goal = GOALS[way].get(case["zeros"], (GLOO, None))
        ratio = ways[against]["seconds"] / ways[way]["seconds"]
        text = f"  {way} {ratio:.2f} x as fast as {against}"
        if goal is not None and case["pattern"] == OWN:
            text += f", goal {goal:.2f} x"
        yield text


# ---- one process --------------------------------------------------------------------------------


def rank_main(spec: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the figures of each share of zeros on rank 0."""
    store = open_store(is_master=os.environ["RANK"] == "0")
    if int(os.environ["RANK"]) >= spec["hosts"]:
        server_main(spec, store)
        return None
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
    dist.barrier()
    store.set("end", "")
    dist.destroy_process_group()
    return cases if rank == 0 else None


def server_main(spec: dict[str, Any], store: Any) -> None:
    own = int(os.environ["RANK"]) - spec["hosts"]
    store.wait(["begin"])
    server = start_named_server(f"s{own}")
    store.set(f"ready {own}", "")
    store.wait(["end"])
    stop_server(server)


def calls_of(groups: dict[str, Any]) -> dict[str, Callable[[Any], object]]:
    calls = {
        OURS: lambda tensor: q7x2.all_reduce(tensor, codec="blocks", group=groups["q7x2"]),
        SERVED: lambda tensor: q7x2.all_reduce(tensor, codec="blocks", group=groups[SERVED]),
        DENSE: lambda tensor: dist.all_reduce(tensor, group=groups["q7x2"]),
        GLOO: lambda tensor: dist.all_reduce(tensor, group=groups["gloo"]),
    }
    return {way: calls[way] for way in WAYS if way != SERVED or SERVED in groups}


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


def measure(
    zeros: float, pattern: str, spec: dict[str, Any], groups: dict[str, Any]
) -> dict[str, Any]:
    """Medians over the rounds; the time of a call is that of the slowest rank."""
    given = draw(zeros, pattern, spec["bytes"], dist.get_rank())
    served = served_calls(groups)
    ways, results = study.in_turns(calls_of(groups), spec["rounds"], lambda _: given.clone())
    for name, result in results.items():
        if not torch.allclose(result, results[GLOO], rtol=1e-4, atol=1e-5):
            raise ValueError(f"{name} has another sum than {GLOO} with {zeros:.0%} zeros")
    served = served_calls(groups) - served
    return {"zeros": zeros, "pattern": pattern, "ways": ways, "served": served}
