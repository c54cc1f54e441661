"""How long a group takes to be there: creation, its first all-reduce, a further group.

Every turn starts new ranks, since a process makes its first group only once. They are forked from
one process that has imported torch (``rank_main``): the imports would take minutes, and are
nobody's to win. What a backend loads on its first use counts.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness import ranks as rank_processes
from benchmarks.harness.startline import StartLine
from benchmarks.harness.timing import timed
from tests.lab.processes import free_port

PHASES = ("init_process_group", "first_all_reduce", "new_group")
_TIMEOUT = timedelta(seconds=60)


def run(ranks: int, backends: tuple[str, ...], turns: int) -> list[dict[str, Any]]:
    """A cell for each of PHASES, as summary.summarize makes them; each turn is a block.

    The time is that of the slowest rank, the CPU time that of all ranks together.

    Raises:
        RanksFailed: with the ranks' output.
    """
    spec = {"ranks": ranks, "backends": backends, "turns": turns}
    env = {"PYTHONDONTWRITEBYTECODE": ""}  # installed packages are compiled
    samples = rank_processes.run(__name__, spec, 1, env=env, timeout_s=600)
    return [_cell(phase, ranks, samples) for phase in PHASES]


def _cell(phase: str, ranks: int, samples: dict[str, list[list[dict[str, Any]]]]) -> dict[str, Any]:
    """`samples`: by backend and turn, what each rank says of each phase."""
    cell: dict[str, Any] = {"op": phase, "size": 0, "ranks": ranks, "backends": {}}
    for backend, turns in samples.items():
        times = [max(rank[phase]["seconds"] for rank in turn) for turn in turns]
        cpu = [sum(rank[phase]["cpu_seconds"] for rank in turn) for turn in turns]
        cell["backends"][backend] = {
            "median": float(np.median(times)),
            "min": min(times),
            "block_medians": times,
            "cpu_seconds": float(np.median(cpu)),
            "iterations": len(times),
        }
    return cell


# ---- the process that forks ranks ----------------------------------------------------------------


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    """Forks the ranks, turn by turn, and returns what they measured."""
    gc.collect()
    gc.freeze()  # or each copy's first collection would go through the whole of torch
    os.environ["LOCAL_WORLD_SIZE"] = str(spec["ranks"])
    samples: dict[str, list[Any]] = {backend: [] for backend in spec["backends"]}
    for _ in range(spec["turns"]):
        for backend in spec["backends"]:
            samples[backend].append(_turn(spec["ranks"], backend))
    return samples


def _turn(ranks: int, backend: str) -> list[dict[str, Any]]:
    """What each rank says of each phase."""
    line, port = StartLine.memory(ranks), free_port()
    children = [_fork_rank(rank, ranks, backend, port, line) for rank in range(ranks)]
    said = []
    for _, reader in children:
        with os.fdopen(reader) as file:
            said.append(file.read())
    failed = [rank for rank, (pid, _) in enumerate(children) if os.waitpid(pid, 0)[1] != 0]
    if failed:
        sys.exit(f"{backend}: ranks {failed} failed")
    return [json.loads(each) for each in said]


def _fork_rank(rank: int, ranks: int, backend: str, port: int, line: mmap.mmap) -> tuple[int, int]:
    """The number of the process, and the pipe into which it writes its figures."""
    reader, writer = os.pipe()
    if (pid := os.fork()) != 0:
        os.close(writer)
        return pid, reader
    status = 1
    try:
        os.environ["LOCAL_RANK"] = str(rank)
        figures = _measure(rank, ranks, backend, port, StartLine(line, rank))
        os.write(writer, json.dumps(figures).encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _measure(rank: int, ranks: int, backend: str, port: int, line: StartLine) -> dict[str, Any]:
    if rank != 0:
        line.wait()  # the store is there
    store = dist.TCPStore(
        "127.0.0.1", port, ranks, rank == 0, timeout=_TIMEOUT, wait_for_workers=False
    )
    if rank == 0:
        line.wait()
    tensor = torch.ones(1024)
    figures: dict[str, Any] = {}

    def phase(name: str, call: Callable[[], object]) -> None:
        line.wait()
        cpu = time.process_time()
        figures[name] = {"seconds": timed(call), "cpu_seconds": time.process_time() - cpu}

    options = {"store": store, "rank": rank, "world_size": ranks, "timeout": _TIMEOUT}
    phase(PHASES[0], lambda: dist.init_process_group(backend, **options))
    phase(PHASES[1], lambda: dist.all_reduce(tensor))
    if tensor[0] != ranks:
        raise AssertionError(f"{backend}: the all-reduce gave {tensor[0]} with {ranks} ranks")
    phase(PHASES[2], dist.new_group)
    line.wait()  # rank 0 has the store
    dist.destroy_process_group()
    return figures
