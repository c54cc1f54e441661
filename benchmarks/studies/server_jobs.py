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
import time
from collections.abc import Mapping
from typing import Any

import q7x2
import torch
import torch.distributed as dist

from benchmarks.harness import ranks, report, servers
from benchmarks.harness.arguments import chosen, option

SERVED, ALONE = "server", "ranks alone"
WAYS = (SERVED, ALONE)
JOBS = 2
GOAL = 0.9

OPTIONS = {
    **servers.options(hosts=4, servers=1, size="16M", rounds=5),
    "memory": option("600K", "of the server's slots"),
    "calls": option(4, "of a turn"),
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    spec = {"ranks": args.hosts, "bytes": args.size, **chosen(args, "memory", "calls", "rounds")}
    # The last host is the server's.
    with servers.lab_with_servers(JOBS * args.hosts, 1, args) as lab:
        jobs = ranks.run(__name__, spec, lab=lab, env=ranks.UNREFINED)
    ways = {}
    for way in WAYS:
        rates = [[args.calls / seconds for seconds in job["seconds"][way]] for job in jobs]
        sums = [sum(together) for together in zip(*rates, strict=True)]  # of both jobs
        ways[way] = {"calls_per_second": statistics.median(sums), "all": sums}
    found = {"ways": ways, "jobs": [job["server"] for job in jobs]}
    return {**spec, **chosen(args, "rate", "server_rate"), **found}


def lines(body: Mapping[str, Any]) -> list[str]:
    served, alone = (body["ways"][way]["calls_per_second"] for way in WAYS)
    each = " and ".join(
        f"{job['calls']} served, {job['declined']} declined" for job in body["jobs"]
    )
    return [
        f"{JOBS} jobs, {report.size(body['bytes'])}: {served:.2f} calls per second with a "
        f"server of {body['memory']}, {alone:.2f} without; "
        f"{served / alone:.2f} x, goal {GOAL:.1f} x ({each})"
    ]


def rank_main(spec: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the figures of both jobs on the first rank of all."""
    rank = int(os.environ["RANK"])
    # All stores are on the first host: that of the processes, and one for each job.
    own = [servers.open_store(job) for job in range(JOBS + 1)] if rank == 0 else []
    meeting = own[0] if own else servers.open_store()
    job = rank // spec["ranks"]
    if job < JOBS:
        store = own[1 + job] if own else servers.open_store(1 + job)
        figures = train(spec, meeting, store)
        if rank % spec["ranks"] == 0:
            meeting.set(f"figures {job}", json.dumps(figures))
    else:
        serve(spec, meeting)
    found = None
    if own:
        found = [json.loads(meeting.get(f"figures {job}")) for job in range(JOBS)]
    # The stores go with this process, so it is the last to go.
    meeting.add("end", 1)
    while own and meeting.add("end", 0) <= JOBS * spec["ranks"]:
        time.sleep(0.01)
    return found


def meet(store: Any, place: str, number: int) -> None:
    """Returns when so many processes have come."""
    store.add(place, 1)
    while store.add(place, 0) < number:
        time.sleep(0.001)


def serve(spec: dict[str, Any], meeting: Any) -> None:
    meeting.wait(["alone"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    jobs = [part for job in range(JOBS) for part in ("--job", f"{address}:{port + 1 + job}")]
    pid = servers.start_server([*jobs, "--memory", spec["memory"]], ready=JOBS)
    meeting.set("ready", "")
    meeting.wait(["measured"])
    servers.stop_server(pid)


def train(spec: dict[str, Any], meeting: Any, store: Any) -> dict[str, Any]:
    """Sums again and again; returns the seconds of each turn, and what the server has done."""
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
            with q7x2.collectives.algorithm("servers" if way == SERVED else ""):
                for tensor in tensors:
                    dist.all_reduce(tensor, group=groups[way])
            if turn:  # the first one is not counted
                seconds[way].append(time.perf_counter() - begin)
            if not all(torch.equal(tensor, expected) for tensor in tensors):
                raise ValueError(f"a wrong sum {way}")
    (server,) = q7x2.describe(groups[SERVED]).servers
    meet(meeting, "done", processes)
    meeting.set("measured", "")
    dist.destroy_process_group()
    return {"seconds": seconds, "server": server}
