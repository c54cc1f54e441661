"""What servers save: all-reduces that two servers serve, beside the best plan without servers.

Virtual hosts with one rank each sum the same tensors, in the same processes and in turns: in a
group that has servers, and in one that has none. Then servers are killed in the middle of calls,
and every result is compared. It needs root.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections.abc import Mapping
from typing import Any

import q7x2
import torch
import torch.distributed as dist

from benchmarks.harness import ranks, report, servers, timing
from benchmarks.harness.arguments import chosen, option

SERVED, ALONE = "servers", "ranks alone"
GOAL = 1.6
KILL_SIZES = (1_000, 100_000, 300_000)  # elements

OPTIONS = {
    **servers.options(hosts=8, servers=2, size="16M", rounds=7),
    "kills": option(100, "servers that are killed"),
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    spec = {"ranks": args.hosts, "bytes": args.size, "seed": random.randrange(10**6)}
    spec |= chosen(args, "servers", "rounds", "kills")
    with servers.lab_with_servers(args.hosts, args.servers, args) as lab:
        found = ranks.run(__name__, spec, lab=lab, env=ranks.UNREFINED)
    return {**spec, **chosen(args, "rate", "server_rate"), **found}


def lines(body: Mapping[str, Any]) -> list[str]:
    ways = body["ways"]
    ratio = ways[ALONE]["seconds"] / ways[SERVED]["seconds"]
    each = "; ".join(
        f"{name} {way['seconds']:.2f} s (CPU {way['cpu_seconds']:.2f} s)"
        for name, way in ways.items()
    )
    return [
        f"{report.size(body['bytes'])}: {each}; {ratio:.2f} x as fast with servers, "
        f"goal {GOAL:.1f} x; {body['served']} of the calls were served",
        f"{body['kills']} servers killed (seed {body['seed']}): {body['calls']} calls, "
        f"{body['calls_served']} of them served, {body['wrong']} wrong results, goal 0",
    ]


def rank_main(spec: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the figures of a rank that is none of a server."""
    rank, store = int(os.environ["RANK"]), servers.open_store()
    if rank >= spec["ranks"]:
        supervise(spec, store)
        return None
    dist.init_process_group("gloo", store=store, rank=rank, world_size=spec["ranks"])
    alone = dist.new_group(backend="q7x2")
    store.set("begin", "")
    store.wait([f"ready 0 {i}" for i in range(spec["servers"])])
    served = dist.new_group(backend="q7x2")
    found = {**times(spec, served, alone), **kills(spec, store)}
    dist.barrier()
    store.set("end", "")
    dist.destroy_process_group()
    return found


def times(spec: dict[str, Any], served: Any, alone: Any) -> dict[str, Any]:
    """The same sum in both groups, in turns."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    given = torch.randn(spec["bytes"] // 4, generator=generator)
    calls = {
        SERVED: lambda tensor: dist.all_reduce(tensor, group=served),
        ALONE: lambda tensor: dist.all_reduce(tensor, group=alone),
    }
    ways, results = timing.in_turns(calls, spec["rounds"], lambda _: given.clone())
    if not torch.allclose(results[SERVED], results[ALONE], rtol=1e-4, atol=1e-5):
        raise ValueError("the sums differ")
    return {"ways": ways, "served": q7x2.describe(served).servers[0]["calls"]}


def kills(spec: dict[str, Any], store: Any) -> dict[str, Any]:
    """In each round a new group with one server, which is killed while calls are served."""
    os.environ["Q7X2_PROBE"] = "0"
    rank, ranks = dist.get_rank(), spec["ranks"]
    calls = wrong = calls_served = 0
    rng = random.Random(spec["seed"])
    for round_ in range(1, spec["kills"] + 1):
        store.set(f"begin {round_}", "")
        store.wait([f"ready {round_} 0"])
        group = dist.new_group(backend="q7x2")
        dist.barrier()
        store.set(f"calls {round_}", "")
        is_over = False
        while not is_over:
            tensor = torch.full((rng.choice(KILL_SIZES),), float(rank + 1))
            with q7x2.collectives.algorithm("servers"):
                dist.all_reduce(tensor, group=group)
            calls += 1
            wrong += int(not bool((tensor == ranks * (ranks + 1) / 2).all()))
            over = torch.tensor([float(store.check([f"killed {round_}"]))])
            dist.broadcast(over, 0)
            is_over = bool(over.item())
        calls_served += sum(each["calls"] for each in q7x2.describe(group).servers[:1])
        dist.destroy_process_group(group)
    total = torch.tensor([wrong])
    dist.all_reduce(total)
    return {
        "kills": spec["kills"],
        "calls": calls,
        "calls_served": calls_served,
        "wrong": int(total.item()),
    }


# ---- servers ------------------------------------------------------------------------------------


def supervise(spec: dict[str, Any], store: Any) -> None:
    """Starts servers on this host, and kills those of the first host in the middle of calls."""
    own = int(os.environ["RANK"]) - spec["ranks"]
    store.wait(["begin"])
    server = servers.start_named_server(f"s{own}")
    store.set(f"ready 0 {own}", "")
    if own == 0:
        rng = random.Random(spec["seed"])
        for round_ in range(1, spec["kills"] + 1):
            store.wait([f"begin {round_}"])
            if round_ == 1:
                servers.stop_server(server)
            server = servers.start_named_server("victim")
            store.set(f"ready {round_} 0", "")
            store.wait([f"calls {round_}"])
            time.sleep(rng.uniform(0, 0.5))
            servers.stop_server(server, signal.SIGKILL)
            store.set(f"killed {round_}", "")
    elif spec["kills"]:
        store.wait(["begin 1"])
        servers.stop_server(server)
    store.wait(["end"])
    servers.stop_server(server)
