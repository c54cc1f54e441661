"""One rank of a part.

    python -m benchmarks.studies.policy.worker SPEC OUT

SPEC is JSON. Rank 0 writes the part's result to OUT.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_LAYERS = 4
_BATCH = 32
_EVERY = 50  # steps between two validations of the part "divergence"
_LEVELS = ("int2:g=128", "int8")


def advise(spec: dict[str, Any]) -> dict[str, Any]:
    """All proposals with their times as advised, and the median times of real steps."""
    width = spec["width"]
    torch.manual_seed(0)
    layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(width, width), nn.Tanh())]
    model = nn.Sequential(*layers)
    x = torch.randn(_BATCH, width)

    def backward(of: nn.Module) -> None:
        of(x).square().mean().backward()

    advice = q7x2.advise(model, backward)
    cells = []
    trained = []
    for proposal in advice.proposals:
        ddp = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=proposal.bucket_cap_mb)
        q7x2.attach(ddp, proposal.hook)
        trained.append(ddp)
        cells.append(
            {
                "hook": proposal.hook_text,
                "bucket_mb": proposal.bucket_cap_mb,
                "advised": proposal.step_seconds,
                "tried": proposal.is_measured,
                "accumulate": proposal.accumulate,
                "seconds": [],
            }
        )
    for round_ in range(spec["rounds"] + 2):  # DDP lays its buckets out anew after the first step
        for ddp, cell in zip(trained, cells, strict=True):
            ddp.zero_grad(set_to_none=True)
            dist.barrier()
            begin = time.monotonic()
            backward(ddp)
            slowest = torch.tensor([time.monotonic() - begin], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if round_ >= 2:
                cell["seconds"].append(slowest.item())
    for cell in cells:
        cell["measured"] = statistics.median(cell["seconds"])
    return {
        "compute_seconds": advice.compute_seconds,
        "gradient_bytes": advice.gradient_bytes,
        "compression_pays": advice.compression_pays,
        "best": list(advice.proposals).index(advice.best),
        "sweep": cells,
    }


def divergence(spec: dict[str, Any]) -> dict[str, Any]:
    """Per seed, a training that is disturbed at int2, and one at the tight level that is not."""
    return {
        "levels": _LEVELS,
        "forced": [_train(spec["steps"], seed, is_forced=True) for seed in range(spec["seeds"])],
        "tight": [_train(spec["steps"], seed, is_forced=False) for seed in range(spec["seeds"])],
    }


def _train(steps: int, seed: int, is_forced: bool) -> dict[str, Any]:
    from benchmarks.studies.train.study import RECIPES
    from benchmarks.studies.train.tasks import TASKS

    rank, world_size = dist.get_rank(), dist.get_world_size()
    task = TASKS["digits"]({**RECIPES["accuracy"]["digits"], "steps": steps})
    torch.manual_seed(seed)
    ddp = DistributedDataParallel(task.model(), bucket_cap_mb=0.1)
    policy = q7x2.ErrorBudget(_LEVELS, start=0 if is_forced else 1)
    hook = q7x2.attach(ddp, q7x2.Quantize("int8"), policy=policy)
    optimizer = task.optimizer(ddp.parameters())
    hook.guard(model=ddp, optimizer=optimizer)
    batches = task.batches(rank, world_size, seed)
    held_out = task.held_out(rank, world_size)
    kick = steps // 2 + _EVERY // 4
    validations = 0
    noticed = None

    def validate() -> float:
        with torch.no_grad():
            return float(task.loss(ddp.module, held_out))

    hook.observe(validate())
    is_kicked = not is_forced
    while hook.step < steps:  # steps that were rolled back are made again
        if not is_kicked and hook.step == kick:
            is_kicked = True
            for group in optimizer.param_groups:
                group["lr"] *= 30
        task.loss(ddp, next(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if hook.step % _EVERY == 0:
            validations += is_forced and hook.step > kick
            rolled_back = hook.observe(validate()).rolled_back
            if rolled_back and noticed is None:
                noticed = validations
    final = torch.tensor([validate()], dtype=torch.float64)
    dist.all_reduce(final)
    return {
        "loss": final.item() / world_size,
        "validations": noticed,
        "level": str(policy.level),
        "history": [[e.step, e.kind, e.parameter, e.value, e.level] for e in policy.history],
    }


def main(spec: dict[str, Any], out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("q7x2")
    result = {"advise": advise, "divergence": divergence}[spec["part"]](spec)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
