"""One benchmark job: some collectives by several backends, here or on virtual hosts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import ranks
from benchmarks.harness.backends import OPENMPI
from benchmarks.harness.openmpi import OpenMpi
from benchmarks.harness.ops import OPS
from tests.lab import LabError, Topology


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
        probed: the first backend, a q7x2, measures the network anew; see `run_probed`.
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
    probed: bool = False

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
    cells: list[dict[str, Any]] = _run(job, on_cell)["cells"]
    return cells


def run_probed(job: Job) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The cells of a job that is `probed`, and the Fabric that its ranks found."""
    found = _run(job, None)
    return found["cells"], found["fabric"]


def _run(job: Job, on_cell: Callable[[str], None] | None) -> dict[str, Any]:
    if OPENMPI in job.backends and job.openmpi is None:
        raise ValueError("the backend openmpi needs an installation of Open MPI")
    names = ("cases", "backends", "blocks", "block_seconds", "hosts", "explained", "probed")

    def show(_: int, text: str) -> None:
        if on_cell and text.startswith("measured "):
            on_cell(text.removeprefix("measured ").strip())

    found: dict[str, Any] = ranks.run(
        __name__,
        {name: getattr(job, name) for name in names},
        job.ranks,
        topology=job.topology,
        ranks_per_host=job.ranks_per_host,
        placement=job.placement,
        env={"Q7X2_PROBE": "force"} if job.probed else {},
        own_cache=True if job.explained or job.probed else None,
        cores=job.cores,
        mpi=job.openmpi,
        timeout_s=job.timeout_s,
        on_line=show,
    )
    if job.topology:
        for cell in found["cells"]:
            assert_traffic(cell)
    return found


def assert_traffic(cell: dict[str, Any]) -> None:
    for label, figures in cell["backends"].items():
        if figures["bytes_sent"] < figures["bytes_required"]:
            raise TrafficError(
                f"{cell['op']} of {cell['size']} B with {label}: {figures['bytes_sent']:.0f} B per "
                f"operation left the hosts, at least {figures['bytes_required']:.0f} B must"
            )


# ---- one rank ------------------------------------------------------------------------------------


def rank_main(spec: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the cells on rank 0, and the Fabric of the first backend."""
    import torch.distributed as dist

    from benchmarks.harness import backends, schedule, summary
    from benchmarks.harness.startline import StartLine

    dist.init_process_group("gloo")
    groups = backends.create(spec["backends"])
    first: Any = groups[spec["backends"][0]]
    line = StartLine.of_group()
    cells = []
    for name, size in spec["cases"]:
        op = OPS[name]
        samples = schedule.measure(op, size, groups, line, spec["blocks"], spec["block_seconds"])
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, samples)
        if dist.get_rank() == 0:
            cells.append(summary.summarize(op, size, gathered, spec["hosts"]))
            if spec["explained"]:
                cells[-1]["history"] = first.history(op, size)
            print(f"measured {name} {size}", flush=True)
    if dist.get_rank() != 0:
        return None
    return {"cells": cells, "fabric": json.loads(first.fabric_json) if spec["probed"] else None}
