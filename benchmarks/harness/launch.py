"""Starts the ranks of one benchmark job, here or on virtual hosts, and collects its cells."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.harness.backends import OPENMPI
from benchmarks.harness.lab import Lab, LabError, Topology
from benchmarks.harness.openmpi import OpenMpi
from benchmarks.harness.ops import OPS
from benchmarks.harness.processes import meeting, run_ranks
from benchmarks.harness.startline import StartLine


class TrafficError(LabError):
    """Fewer bytes crossed the network than the collective must move: it went another way."""


@dataclass(frozen=True)
class Job:
    """What one set of processes measures.

    Attributes:
        ops, sizes: every collective at every size (bytes), see ops.py.
        backends: in the order in which they take turns; the first is the one under test.
        ranks: in all; with a topology, equally many on each host.
        blocks, block_seconds: how often each backend has its turn, and for about how long.
        cores: the ranks share that many cores; 0 for all.
        topology: virtual hosts to run on, or None for this machine.
        placement: the host of each rank, or None for consecutive ranks on each host.
        openmpi: the installation behind the backend "openmpi".
        explained: the first backend, a q7x2, chooses without what it knows from earlier jobs, and
            the cell has how it came to its choice. Catalogues are neither read nor written.
        fabric: where rank 0 writes the Fabric of the first backend, as JSON.
    """

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    backends: tuple[str, ...]
    ranks: int
    blocks: int = 5
    block_seconds: float = 0.2
    cores: int = 0
    topology: Topology | None = None
    placement: tuple[int, ...] | None = None
    openmpi: OpenMpi | None = None
    timeout_s: float = 1800
    explained: bool = False
    fabric: Path | None = None
    env: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def ranks_per_host(self) -> int:
        return self.ranks // self.topology.hosts if self.topology else self.ranks

    @property
    def hosts(self) -> tuple[int, ...]:
        """The virtual host of each rank; empty on this machine."""
        if self.topology is None:
            return ()
        return self.placement or tuple(self.topology.blocks(self.ranks_per_host))

    @property
    def cases(self) -> list[tuple[str, int]]:
        """(collective, size) of each cell; sizes are rounded so that ranks get equal parts."""
        return [
            (name, size)
            for name in self.ops
            for size in sorted({OPS[name].round_size(size, self.ranks) for size in self.sizes})
        ]


def run(job: Job, on_cell: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Runs the job and returns its cells (see summary.summarize).

    Args:
        on_cell: is told of each cell as it is done.

    Raises:
        RanksFailed: with every rank's output.
        TrafficError: on virtual hosts, when the bytes over the links are too few.
    """
    with tempfile.TemporaryDirectory(prefix="q7x2-bench-") as folder:
        cells = Path(folder) / "cells.jsonl"
        spec = Path(folder) / "spec.json"
        line = Path(folder) / "start_line"
        StartLine.create(line, job.ranks)
        spec.write_text(
            json.dumps(
                {
                    "cases": job.cases,
                    "backends": job.backends,
                    "blocks": job.blocks,
                    "block_seconds": job.block_seconds,
                    "cores": job.cores,
                    "hosts": job.hosts,
                    "start_line": str(line),
                    "explained": job.explained,
                    "cells": str(cells),
                    "fabric": str(job.fabric) if job.fabric else None,
                }
            )
        )
        program = [sys.executable, "-m", "benchmarks.harness.worker", str(spec)]

        def show(_: int, text: str) -> None:
            if on_cell and text.startswith("measured "):
                on_cell(text.removeprefix("measured ").strip())

        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(), **job.env}
        if job.explained:
            env["XDG_CACHE_HOME"] = folder
        if job.topology:
            with Lab(job.topology) as lab:
                lab.run(
                    program,
                    ranks_per_host=job.ranks_per_host,
                    placement=job.placement,
                    env=env,
                    timeout_s=job.timeout_s,
                    on_line=show,
                )
        else:
            commands, environments = _local(job, program, env)
            run_ranks(commands, environments, job.timeout_s, show)
        measured = [json.loads(text) for text in cells.read_text().splitlines()]
    if job.topology:
        for cell in measured:
            assert_traffic(cell)
    return measured


def assert_traffic(cell: dict[str, Any]) -> None:
    for label, figures in cell["backends"].items():
        if figures["bytes_sent"] < figures["bytes_required"]:
            raise TrafficError(
                f"{cell['op']} of {cell['size']} B with {label}: {figures['bytes_sent']:.0f} B per "
                f"operation left the hosts, at least {figures['bytes_required']:.0f} B must"
            )


def _local(
    job: Job, program: list[str], env: dict[str, str]
) -> tuple[list[list[str]], list[dict[str, str]]]:
    environments = rank_environments(job.ranks, env)
    if OPENMPI not in job.backends:
        return [program] * job.ranks, environments
    if job.openmpi is None:
        raise ValueError("the backend openmpi needs an installation of Open MPI")
    # Each rank takes its number from Open MPI.
    return [job.openmpi.command(job.ranks, program)], [
        {**environments[0], "MPI4PY_LIBMPI": job.openmpi.library}
    ]


def rank_environments(ranks: int, env: Mapping[str, str]) -> list[dict[str, str]]:
    """Of each rank on this machine: the caller's environment, `env`, and what `env://` reads."""
    return [{**os.environ, **env, **each} for each in meeting(ranks)]


def separate_environments(ranks: int, env: Mapping[str, str]) -> list[dict[str, str]]:
    """The same for ranks that pass as hosts of their own.

    Ranks of one host would sum in its memory, and codecs would have nothing to do.
    """
    return [
        environment | {"Q7X2_HOST_ID": str(rank)}
        for rank, environment in enumerate(rank_environments(ranks, env))
    ]


def python_path() -> str:
    """The caller's, with the checkout before it."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])
