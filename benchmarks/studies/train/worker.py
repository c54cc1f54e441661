"""One rank of a job of the study: see ``rank_main``."""

from __future__ import annotations

import json
from typing import Any

import torch.distributed as dist

from benchmarks.studies.train import cadence, hook_cpu, overlap, speed

PARTS = {
    "speed": speed.measure,
    "accuracy": speed.measure_losses,
    "powersgd": speed.measure_single_steps,
    "compute-bound": speed.measure_single_steps,
    "overlap": overlap.measure,
    "hook-cpu": hook_cpu.measure,
    "fsdp": speed.measure_single_steps,
    "fsdp-accuracy": speed.measure_losses,
    "cadence": cadence.measure,
    "cadence-accuracy": cadence.measure,
    "cadence-digits": cadence.measure,
    "variants": speed.measure_losses,
    "held-out-study": speed.measure_losses,
    "long": speed.measure_losses,
}


def rank_main(spec: dict[str, Any]) -> None:
    """Rank 0 adds each cell to the file that the spec names, as one line, and says so."""
    dist.init_process_group("gloo")
    for cell in PARTS[spec["part"]](spec):
        if dist.get_rank() == 0:
            with open(spec["cells"], "a") as file:
                file.write(json.dumps(cell) + "\n")
            print(f"measured {cell['label']}", flush=True)
