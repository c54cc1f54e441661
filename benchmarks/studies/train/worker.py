"""One rank of a job of the study.

    python -m benchmarks.studies.train.worker SPEC

SPEC is a JSON file that `study.py` writes. Rank 0 adds each cell to the file that it names, as one
line, and says so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.studies.train import cadence, hook_cpu, overlap, seeds, sharded, single_steps, speed

PARTS = {
    "speed": speed.measure,
    "accuracy": seeds.measure,
    "powersgd": single_steps.measure,
    "compute-bound": single_steps.measure,
    "overlap": overlap.measure,
    "hook-cpu": hook_cpu.measure,
    "fsdp": sharded.measure_speed,
    "fsdp-accuracy": sharded.measure_losses,
    "cadence": cadence.measure,
    "cadence-accuracy": cadence.measure,
    "cadence-digits": cadence.measure,
    "variants": seeds.measure,
    "held-out-study": seeds.measure,
    "long": seeds.measure,
}


def main(spec: dict[str, Any]) -> None:
    dist.init_process_group("gloo")
    for cell in PARTS[spec["part"]](spec):
        if dist.get_rank() == 0:
            with open(spec["cells"], "a") as file:
                file.write(json.dumps(cell) + "\n")
            print(f"measured {cell['label']}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(Path(sys.argv[1]).read_text()))
