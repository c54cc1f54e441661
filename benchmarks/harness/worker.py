"""One rank of a job: `python -m benchmarks.harness.worker SPEC.json`, started by launch.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(spec: dict[str, Any]) -> None:
    if spec["cores"]:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: spec["cores"]])
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
        os.environ["LOCAL_RANK"] = os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]

    # Imported late: the affinity above must hold for every thread that these start.
    import torch
    import torch.distributed as dist

    from benchmarks.harness import backends, schedule, summary
    from benchmarks.harness.ops import OPS
    from benchmarks.harness.startline import StartLine

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    groups = backends.create(spec["backends"])
    line = StartLine(spec["start_line"], rank, world_size)
    if spec["fabric"] and rank == 0:
        Path(spec["fabric"]).write_text(groups[spec["backends"][0]].fabric_json)

    for name, size in spec["cases"]:
        op = OPS[name]
        samples = schedule.measure(op, size, groups, line, spec["blocks"], spec["block_seconds"])
        gathered: list[Any] = [None] * world_size
        dist.all_gather_object(gathered, samples)
        if rank == 0:
            cell = summary.summarize(op, size, gathered, spec["hosts"])
            if spec["explained"]:
                cell["history"] = groups[spec["backends"][0]].history(op, size)
            with Path(spec["cells"]).open("a") as file:
                file.write(json.dumps(cell) + "\n")
            print(f"measured {name} {size}", flush=True)

    # An Open MPI that finalises while a rank still communicates elsewhere would hang it.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
