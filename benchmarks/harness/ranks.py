"""Runs a function of a module on all ranks of a job, here or in a lab: `rank_main(spec)`.

It imports nothing but what a rank needs: machines with GPUs have little installed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.harness.openmpi import OpenMpi
from tests.lab import Lab, Topology
from tests.lab.processes import OnLine, meeting, run_ranks

# For ranks that make too few calls for q7x2 to settle on the fastest algorithm.
UNREFINED = {"Q7X2_REFINE": "0"}


def run(
    module: str,
    spec: Mapping[str, Any],
    ranks: int = 0,
    *,
    lab: Lab | None = None,
    topology: Topology | None = None,
    ranks_per_host: int | None = None,
    placement: Sequence[int] | None = None,
    env: Mapping[str, str] | None = None,
    apart: bool = False,
    own_cache: bool | None = None,
    cores: int = 0,
    mpi: OpenMpi | None = None,
    timeout_s: float = 3600,
    on_line: OnLine | None = None,
) -> Any:
    """Calls `rank_main(spec)` of a module on all ranks, and returns the first result by rank.

    A rank without a result returns None. The spec and the results are plain values.

    Args:
        ranks: On this machine; a lab has `ranks_per_host` on each host, or one.
        topology: A lab that is brought up for this run alone.
        placement: The host of each rank in the lab, if neighbours do not share one.
        env: Variables of all ranks.
        apart: Ranks of this machine pass as hosts of their own. Ranks of one host would sum in its
            memory, and codecs would have nothing to do.
        own_cache: The ranks do not read what earlier runs have found of the network. Default: in a
            lab.
        cores: The ranks share that many; 0 for all.
        mpi: Starts the ranks on this machine.
        on_line: Is given (rank, line) for each line of output.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="q7x2-study-"))
        if topology is not None:
            lab = stack.enter_context(Lab(topology))
        program = [sys.executable, "-m", "benchmarks.harness.ranks"]
        command = [*program, module, json.dumps(spec), folder]
        if cores:
            shared_cores = sorted(os.sched_getaffinity(0))[:cores]
            command = ["taskset", "-c", ",".join(map(str, shared_cores)), *command]
        shared = {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(), **(env or {})}
        if own_cache or (own_cache is None and lab is not None):
            shared["XDG_CACHE_HOME"] = folder
        if lab is not None:
            hosts: dict[str, Any] = {"ranks_per_host": ranks_per_host, "placement": placement}
            lab.run(command, **hosts, env=shared, timeout_s=timeout_s, on_line=on_line)
        else:
            environments = [{**os.environ, **shared, **each} for each in meeting(ranks)]
            commands = [command] * ranks
            if apart:
                for rank, environment in enumerate(environments):
                    environment["Q7X2_HOST_ID"] = str(rank)
            if mpi is not None:  # each rank takes its number from Open MPI
                commands = [mpi.command(ranks, command)]
                environments = [{**environments[0], "MPI4PY_LIBMPI": mpi.library}]
            run_ranks(commands, environments, timeout_s, on_line)
        results = sorted(Path(folder).glob("*.result.json"))
        return json.loads(results[0].read_text()) if results else None


def python_path() -> str:
    """The caller's, with the checkout before it."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])


def _rank(module: str, spec: dict[str, Any], folder: Path) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        if f"OMPI_COMM_WORLD_{name}" in os.environ:
            os.environ[name] = os.environ[f"OMPI_COMM_WORLD_{name}"]

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    found = importlib.import_module(module).rank_main(spec)
    if found is not None:
        rank = int(os.environ["RANK"])
        (folder / f"{rank:04}.result.json").write_text(json.dumps(found))
    # An Open MPI that finalises while a rank still communicates elsewhere would hang it.
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    _rank(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
