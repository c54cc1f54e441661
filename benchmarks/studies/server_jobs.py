"""Two jobs on one server that has too few slots for both, beside the same jobs without a server.

Each job sums its tensor again and again, at the same time as the other job: in a group that has the
server, which is forced, and in one that has none, in turns. Every result is compared. It needs
root.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping
from typing import Any

import q7x2
import torch
import torch.distributed as dist

from benchmarks.harness import arguments, report, study
from benchmarks.harness.servers import (
    add_arguments,
    lab_with_servers,
    open_store,
    start_server,
    stop_server,
)

SERVED, ALONE = "server", "ranks alone"
WAYS = (SERVED, ALONE)
JOBS = 2
GOAL = 0.9


def main(argv: list[str]) -> None:
    parser = study.parser(__name__, __doc__)
    add_arguments(parser, hosts=4, servers=1, size="16M", rounds=5)
    parser.add_argument("--memory", default="600K", help="of the server's slots")
    parser.add_argument("--calls", type=int, default=4, help="of a turn")
    args = parser.parse_args(argv)
    spec = {
        "ranks": args.hosts,
        "bytes": arguments.parse_size(args.size),
        **study.chosen(args, "memory", "calls", "rounds"),
    }
    # The last host is the server's.
    with lab_with_servers(JOBS * args.hosts, 1, args) as lab:
        # Too few calls for q7x2 to settle on the fastest algorithm.
        jobs = study.run(__name__, spec, lab=lab, env={"Q7X2_REFINE": "0"})
    found = {"ways": sums_of(spec, jobs), "jobs": [job["server"] for job in jobs]}
    body = {**spec, **study.chosen(args, "rate", "server_rate"), **found}
    study.publish(args.out, body, lines)


def sums_of(spec: dict[str, Any], jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Calls per second of both jobs together."""
    ways = {}
    for way in WAYS:
        rates = [[spec["calls"] / seconds for seconds in job["seconds"][way]] for job in jobs]
        sums = [sum(together) for together in zip(*rates, strict=True)]
        ways[way] = {"calls_per_second": statistics.median(sums), "all": sums}
    return ways


def lines(body: Mapping[str, Any]) -> list[str]:
    """For a person."""
    rates = {way: figures["calls_per_second"] for way, figures in body["ways"].items()}
    each = " and ".join(
        f"{job['calls']} served, {job['declined']} declined" for job in body["jobs"]
    )
    return [
        f"{JOBS} jobs, {report.size(body['bytes'])}: {rates[SERVED]:.2f} calls per second with a "
        f"server of {body['memory']}, {rates[ALONE]:.2f} without; "
        f"{rates[SERVED] / rates[ALONE]:.2f} x, goal {GOAL:.1f} x ({each})"
    ]


# ---- one process --------------------------------------------------------------------------------


def rank_main(spec: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the figures of both jobs on the first rank of all."""
    rank = int(os.environ["RANK"])
    # All stores are on the first host: that of the processes, and one for each job.
    own = [open_store(job, is_master=True) for job in range(JOBS + 1)] if rank == 0 else []
    meeting = own[0] if own else open_store(is_master=False)
    job = rank // spec["ranks"]
    if job < JOBS:
        store = own[1 + job] if own else open_store(1 + job, is_master=False)
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
    pid = start_server([*jobs, "--memory", spec["memory"]], ready=JOBS)
    meeting.set("ready", "")
    meeting.wait(["measured"])
    stop_server(pid)


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
