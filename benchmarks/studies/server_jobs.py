"""Two jobs on one server that has too few slots for both, beside the same jobs without a server.

Each job sums its tensor again and again, at the same time as the other job: in a group that has the
server, which is forced, and in one that has none, in turns. Every result is compared. It needs
root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import arguments, facts, report
from benchmarks.harness.lab import Lab, Topology
from benchmarks.studies.servers import open_store, run_in, start_server, stop_server

RESULTS = Path(__file__).parents[1] / "results"
SERVED, ALONE = "server", "ranks alone"
WAYS = (SERVED, ALONE)
JOBS = 2
GOAL = 0.9


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks server_jobs", description=__doc__)
    parser.add_argument("--hosts", type=int, default=4, help="of each job")
    parser.add_argument("--rate", default="100mbit", help="of each host's NIC, as tc spells it")
    parser.add_argument("--server-rate", default="1gbit", help="of the server's NIC")
    parser.add_argument("--size", default="16M", help="of the tensors, for example 16M")
    parser.add_argument("--memory", default="600K", help="of the server's slots")
    parser.add_argument("--calls", type=int, default=4, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "server_jobs.json")
    args = parser.parse_args(argv)
    spec = {
        "ranks": args.hosts,
        "bytes": arguments.parse_size(args.size),
        "memory": args.memory,
        "calls": args.calls,
        "rounds": args.rounds,
    }
    found = measure(spec, args)
    machine = facts.collect()
    report.write_json(
        args.out, machine, {**spec, "rate": args.rate, "server_rate": args.server_rate, **found}
    )
    console = report.console()
    report.print_facts(console, machine)
    console.print(line(spec, found), markup=False)


def measure(spec: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """All figures. The last host is the server's."""
    hosts = JOBS * args.hosts
    with (
        Lab(Topology(hosts=hosts + 1, rate=args.rate)) as lab,
        tempfile.TemporaryDirectory() as folder,
    ):
        lab.set_rate(hosts, args.server_rate)
        run_in(lab, "benchmarks.studies.server_jobs", spec, Path(folder), cache=folder)
        jobs = [json.loads((Path(folder) / f"{job}.json").read_text()) for job in range(JOBS)]
    ways = {}
    for way in WAYS:
        rates = [[spec["calls"] / seconds for seconds in job["seconds"][way]] for job in jobs]
        sums = [sum(together) for together in zip(*rates, strict=True)]
        ways[way] = {"calls_per_second": statistics.median(sums), "all": sums}
    return {"ways": ways, "jobs": [job["server"] for job in jobs]}


def line(spec: dict[str, Any], found: dict[str, Any]) -> str:
    """For a person."""
    rates = {way: figures["calls_per_second"] for way, figures in found["ways"].items()}
    each = " and ".join(
        f"{job['calls']} served, {job['declined']} declined" for job in found["jobs"]
    )
    return (
        f"{JOBS} jobs, {report.size(spec['bytes'])}: {rates[SERVED]:.2f} calls per second with a "
        f"server of {spec['memory']}, {rates[ALONE]:.2f} without; "
        f"{rates[SERVED] / rates[ALONE]:.2f} x, goal {GOAL:.1f} x ({each})"
    )


# ---- one process --------------------------------------------------------------------------------


def process_main(spec: dict[str, Any], folder: Path) -> None:
    rank = int(os.environ["RANK"])
    # All stores are on the first host: that of the processes, and one for each job.
    own = [open_store(job, is_master=True) for job in range(JOBS + 1)] if rank == 0 else []
    meeting = own[0] if own else open_store(is_master=False)
    job = rank // spec["ranks"]
    if job < JOBS:
        store = own[1 + job] if own else open_store(1 + job, is_master=False)
        rank_main(spec, folder / f"{job}.json", meeting, store)
    else:
        serve(spec, meeting)
    # The stores go with this process, so it is the last to go.
    meeting.add("end", 1)
    while own and meeting.add("end", 0) <= JOBS * spec["ranks"]:
        time.sleep(0.01)


def meet(store: Any, place: str, number: int) -> None:
    """Returns when so many processes have come."""
    store.add(place, 1)
    while store.add(place, 0) < number:
        time.sleep(0.001)


def serve(spec: dict[str, Any], meeting: Any) -> None:
    meeting.wait(["alone"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    jobs = [part for job in range(JOBS) for part in ("--job", f"{address}:{port + 1 + job}")]
    pid = start_server([*jobs, "--memory", spec["memory"]], ready=JOBS)
    meeting.set("ready", "")
    meeting.wait(["measured"])
    stop_server(pid)


def rank_main(spec: dict[str, Any], out: Path, meeting: Any, store: Any) -> None:
    import q7x2
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    processes = JOBS * spec["ranks"]
    rank = int(os.environ["RANK"]) % spec["ranks"]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=spec["ranks"])
    groups = {ALONE: dist.new_group(backend="q7x2")}
    meet(meeting, "made", processes)
    meeting.set("alone", "")
    meeting.wait(["ready"])
    groups[SERVED] = dist.new_group(backend="q7x2")
    expected = torch.arange(spec["bytes"] // 4) % 1009 * float(sum(range(1, spec["ranks"] + 1)))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(spec["rounds"] + 1):
        for way in WAYS[turn % 2 :] + WAYS[: turn % 2]:
            given = torch.arange(spec["bytes"] // 4) % 1009 * float(rank + 1)
            tensors = [given.clone() for _ in range(spec["calls"])]
            meet(meeting, f"{turn} {way}", processes)
            begin = time.perf_counter()
            with q7x2.algorithm("servers" if way == SERVED else ""):
                for tensor in tensors:
                    dist.all_reduce(tensor, group=groups[way])
            if turn:  # the first one is not counted
                seconds[way].append(time.perf_counter() - begin)
            if not all(torch.equal(tensor, expected) for tensor in tensors):
                raise ValueError(f"a wrong sum {way}")
    if rank == 0:
        (server,) = q7x2.describe(groups[SERVED]).servers
        out.write_text(json.dumps({"seconds": seconds, "server": server}))
    meet(meeting, "done", processes)
    meeting.set("measured", "")
    dist.destroy_process_group()


if __name__ == "__main__":
    process_main(json.loads(sys.argv[1]), Path(sys.argv[2]))
