"""What servers save: all-reduces that two servers serve, beside the best plan without servers.

Virtual hosts with one rank each sum the same tensors, in the same processes and in turns: in a
group that has servers, and in one that has none. Then servers are killed in the middle of calls,
and every result is compared. It needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.harness import arguments, facts, launch, report
from benchmarks.harness.lab import Lab, Topology

RESULTS = Path(__file__).parents[1] / "results"
SERVED, ALONE = "servers", "ranks alone"
WAYS = (SERVED, ALONE)
GOAL = 1.6
KILL_SIZES = (1_000, 100_000, 300_000)  # elements


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks servers", description=__doc__)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", default="100mbit", help="of each host's NIC, as tc spells it")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--server-rate", default="1gbit", help="of each server's NIC")
    parser.add_argument("--size", default="16M", help="of the tensor, for example 16M")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kills", type=int, default=100, help="servers that are killed")
    parser.add_argument("--out", type=Path, default=RESULTS / "servers.json")
    args = parser.parse_args(argv)
    spec = {
        "ranks": args.hosts,
        "servers": args.servers,
        "bytes": arguments.parse_size(args.size),
        "rounds": args.rounds,
        "kills": args.kills,
        "seed": random.randrange(10**6),
    }
    found = measure(spec, args)
    machine = facts.collect()
    report.write_json(
        args.out,
        machine,
        {**spec, "rate": args.rate, "server_rate": args.server_rate, **found},
    )
    console = report.console()
    report.print_facts(console, machine)
    for line in lines(spec, found):
        console.print(line, markup=False)


def measure(spec: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """All figures. Hosts after those of the ranks are those of the servers."""
    topology = Topology(hosts=args.hosts + args.servers, rate=args.rate)
    with Lab(topology) as lab, tempfile.TemporaryDirectory() as folder:
        for server in range(args.servers):
            lab.set_rate(args.hosts + server, args.server_rate)
        out = Path(folder) / "found.json"
        run_in(lab, "benchmarks.studies.servers", spec, out, cache=folder)
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def run_in(lab: Lab, module: str, spec: dict[str, Any], out: Path, cache: str) -> None:
    """Runs the module on every host of the lab. Makes too few calls for q7x2 to refine a choice."""
    lab.run(
        [sys.executable, "-m", module, json.dumps(spec), str(out)],
        env={
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": launch.python_path(),
            "XDG_CACHE_HOME": cache,
            "Q7X2_REFINE": "0",
        },
        timeout_s=3600,
    )


def lines(spec: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """For a person."""
    ways = found["ways"]
    ratio = ways[ALONE]["seconds"] / ways[SERVED]["seconds"]
    each = "; ".join(
        f"{name} {way['seconds']:.2f} s (CPU {way['cpu_seconds']:.2f} s)"
        for name, way in ways.items()
    )
    return [
        f"{report.size(spec['bytes'])}: {each}; {ratio:.2f} x as fast with servers, "
        f"goal {GOAL:.1f} x; {found['served']} of the calls were served",
        f"{found['kills']} servers killed (seed {spec['seed']}): {found['calls']} calls, "
        f"{found['calls_served']} of them served, {found['wrong']} wrong results, goal 0",
    ]


# ---- one process --------------------------------------------------------------------------------


def process_main(spec: dict[str, Any], out: Path) -> None:
    if int(os.environ["RANK"]) < spec["ranks"]:
        rank_main(spec, out)
    else:
        supervise(spec)


def open_store(job: int = 0, *, is_master: bool) -> Any:
    """The store of a job; each has a port of its own on the first host."""
    import torch.distributed as dist

    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]) + job,
        is_master=is_master,
        wait_for_workers=False,
        timeout=timedelta(hours=1),
    )


def rank_main(spec: dict[str, Any], out: Path) -> None:
    """Rank 0 writes the figures to ``out``."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = open_store(is_master=os.environ["RANK"] == "0")
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=spec["ranks"])
    alone = dist.new_group(backend="q7x2")
    store.set("begin", "")
    store.wait([f"ready 0 {i}" for i in range(spec["servers"])])
    served = dist.new_group(backend="q7x2")
    found = {**times(spec, served, alone), **kills(spec, store)}
    if rank == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    store.set("end", "")
    dist.destroy_process_group()


def _servers_of(group: Any) -> list[dict[str, Any]]:
    import q7x2

    return q7x2.describe(group).servers


def times(spec: dict[str, Any], served: Any, alone: Any) -> dict[str, Any]:
    """Medians over the rounds; the time of a call is that of the slowest rank."""
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(dist.get_rank())
    given = torch.randn(spec["bytes"] // 4, generator=generator)
    groups = {SERVED: served, ALONE: alone}
    figures: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    results = {}
    for turn in range(spec["rounds"] + 1):  # the first one is not counted
        for name in WAYS[turn % 2 :] + WAYS[: turn % 2]:
            results[name] = given.clone()
            dist.barrier()
            cpu, begin = time.process_time(), time.perf_counter()
            dist.all_reduce(results[name], group=groups[name])
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
            slowest = torch.tensor([seconds], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            total = torch.tensor([cpu], dtype=torch.float64)
            dist.all_reduce(total)
            figures[name].append([slowest.item(), total.item()])
    if not torch.allclose(results[SERVED], results[ALONE], rtol=1e-4, atol=1e-5):
        raise ValueError("the sums differ")
    ways = {}
    for name, rows in figures.items():
        medians = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
        ways[name] = dict(zip(("seconds", "cpu_seconds"), medians, strict=True))
        ways[name]["all_seconds"] = [row[0] for row in rows[1:]]
    return {"ways": ways, "served": _servers_of(served)[0]["calls"]}


def kills(spec: dict[str, Any], store: Any) -> dict[str, Any]:
    """In each round a new group with one server, which is killed while calls are served."""
    import q7x2
    import torch
    import torch.distributed as dist

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
            with q7x2.algorithm("servers"):
                dist.all_reduce(tensor, group=group)
            calls += 1
            wrong += int(not bool((tensor == ranks * (ranks + 1) / 2).all()))
            over = torch.tensor([float(store.check([f"killed {round_}"]))])
            dist.broadcast(over, 0)
            is_over = bool(over.item())
        servers = _servers_of(group)
        calls_served += servers[0]["calls"] if servers else 0
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


def supervise(spec: dict[str, Any]) -> None:
    """Starts servers on this host, and kills those of the first host in the middle of calls."""
    import torch.distributed  # noqa: F401  # so that servers start quickly

    own = int(os.environ["RANK"]) - spec["ranks"]
    store = open_store(is_master=os.environ["RANK"] == "0")
    store.wait(["begin"])
    server = _start(f"s{own}")
    store.set(f"ready 0 {own}", "")
    if own == 0:
        rng = random.Random(spec["seed"])
        for round_ in range(1, spec["kills"] + 1):
            store.wait([f"begin {round_}"])
            if round_ == 1:
                stop_server(server, signal.SIGTERM)
            server = _start("victim")
            store.set(f"ready {round_} 0", "")
            store.wait([f"calls {round_}"])
            time.sleep(rng.uniform(0, 0.5))
            stop_server(server, signal.SIGKILL)
            store.set(f"killed {round_}", "")
    elif spec["kills"]:
        store.wait(["begin 1"])
        stop_server(server, signal.SIGTERM)
    store.wait(["end"])
    stop_server(server, signal.SIGTERM)


def _start(name: str) -> int:
    where = ["--master-addr", os.environ["MASTER_ADDR"]]
    where += ["--master-port", os.environ["MASTER_PORT"]]
    return start_server([*where, "--name", name])


def start_server(options: list[str], ready: int = 1) -> int:
    """Forks ``q7x2 serve``, and returns its pid when it has announced itself to `ready` jobs."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        from q7x2.cli import main as command

        os._exit(command(["serve", *options]))
    os.close(writer)
    said = b""
    while said.count(b"is server") < ready:
        more = os.read(reader, 1000)
        if not more:
            raise RuntimeError(f"the server has ended: {said.decode()}")
        said += more
    return pid  # the pipe stays open, so that the server may go on speaking


def stop_server(pid: int, number: int = signal.SIGTERM) -> None:
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, number)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    process_main(json.loads(sys.argv[1]), Path(sys.argv[2]))
