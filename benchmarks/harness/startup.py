"""How long a group takes to be there: creation, its first all-reduce, a further group.

Every turn starts new ranks, since a process makes its first group only once. They are forked from
one process that has imported torch (``main``): the imports would take minutes, and are
nobody's to win. What a backend loads on its first use counts.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness.launch import python_path
from benchmarks.harness.processes import free_port, run_ranks
from benchmarks.harness.startline import StartLine

PHASES = ("init_process_group", "first_all_reduce", "new_group")
_TIMEOUT = timedelta(seconds=60)


def run(ranks: int, backends: tuple[str, ...], turns: int) -> list[dict[str, Any]]:
    """A cell for each of PHASES, as summary.summarize makes them; each turn is a block.

    The time is that of the slowest rank, the CPU time that of all ranks together.

    Raises:
        RanksFailed: with the ranks' output.
    """
    with tempfile.TemporaryDirectory(prefix="q7x2-startup-") as folder:
        spec = Path(folder) / "spec.json"
        spec.write_text(
            json.dumps({"ranks": ranks, "backends": backends, "turns": turns, "folder": folder})
        )
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "",  # installed packages are compiled
            "PYTHONPATH": python_path(),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        run_ranks([[sys.executable, "-m", "benchmarks.harness.startup", str(spec)]], [env], 600)
        samples = json.loads((Path(folder) / "samples.json").read_text())
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


def main(spec: dict[str, Any]) -> None:
    """Forks the ranks, turn by turn, and writes what they measured."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # or each copy's first collection would go through the whole of torch
    samples: dict[str, list[Any]] = {backend: [] for backend in spec["backends"]}
    for _ in range(spec["turns"]):
        for backend in spec["backends"]:
            samples[backend].append(_turn(spec["ranks"], backend, Path(spec["folder"])))
    (Path(spec["folder"]) / "samples.json").write_text(json.dumps(samples))


def _turn(ranks: int, backend: str, folder: Path) -> list[dict[str, Any]]:
    """What each rank says of each phase."""
    line = folder / "start_line"
    StartLine.create(line, ranks)
    port = free_port()
    children = {}
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            _become_rank(rank, ranks, backend, port, line, folder)
        children[child] = rank
    failed = []
    while children:
        child, status = os.wait()
        if status != 0:
            failed.append(children[child])
        del children[child]
    if failed:
        sys.exit(f"{backend}: ranks {failed} failed")
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def _become_rank(rank: int, ranks: int, backend: str, port: int, line: Path, folder: Path) -> None:
    """Does not return."""
    status = 1
    try:
        os.environ["LOCAL_RANK"] = str(rank)
        figures = _measure(rank, ranks, backend, port, StartLine(str(line), rank, ranks))
        (folder / f"rank-{rank}.json").write_text(json.dumps(figures))
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

    def timed(phase: str, call: Callable[[], object]) -> None:
        line.wait()
        cpu, begin = time.process_time(), time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        figures[phase] = {"seconds": seconds, "cpu_seconds": time.process_time() - cpu}

    timed(
        "init_process_group",
        lambda: dist.init_process_group(
            backend, store=store, rank=rank, world_size=ranks, timeout=_TIMEOUT
        ),
    )
    timed("first_all_reduce", lambda: dist.all_reduce(tensor))
    if tensor[0] != ranks:
        raise AssertionError(f"{backend}: the all-reduce gave {tensor[0]} with {ranks} ranks")
    timed("new_group", dist.new_group)
    line.wait()  # rank 0 has the store
    dist.destroy_process_group()
    return figures


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
