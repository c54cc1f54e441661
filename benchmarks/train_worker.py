"""One rank of the training study: a byte-level GPT for some steps, with one hook over one backend.

    python -m benchmarks.train_worker SPEC

SPEC is a JSON file that `benchmarks.train` writes. Rank 0 writes the figures of all steps to the
file that it names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from corpus import Sampler, standard_library
from gpt import GPT, GPTConfig
from torch.nn.parallel import DistributedDataParallel

# PyTorch's PowerSGD hook crashes or hangs with several buckets, so it gets one.
_ONE_BUCKET_MB = 1024.0
_COMPUTE_EVERY = 10  # steps between two measurements of compute alone


def _torch_compress(dtype: torch.dtype) -> Callable[..., Any]:
    """PyTorch's own, under a name for which DDP does not insist on NCCL."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def compress(state: Any, bucket: Any) -> Any:
        return default_hooks._compress_hook(dtype, state, bucket)

    compress.__annotations__.clear()  # postponed ones are not what DDP compares them with
    return compress


def _torch_powersgd(ddp: DistributedDataParallel, rank: int, start: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=max(2, start)
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def add_hook(ddp: DistributedDataParallel, name: str, start: int) -> q7x2.Attached | None:
    """`name` as in methods.py; `start`: steps in full precision."""
    match name.split():
        case ["none"]:
            return None
        case ["torch", "fp16"]:
            ddp.register_comm_hook(None, _torch_compress(torch.float16))
        case ["torch", "bf16"]:
            ddp.register_comm_hook(None, _torch_compress(torch.bfloat16))
        case ["torch", "powersgd", rank]:
            _torch_powersgd(ddp, int(rank), start)
        case ["bf16"]:
            return q7x2.attach(ddp, q7x2.Allreduce(dtype=torch.bfloat16))
        case ["powersgd", rank]:
            return q7x2.attach(ddp, q7x2.PowerSGD(rank=int(rank), start_iter=start))
        case ["alternating", rank]:
            options = q7x2.PowerSGD(rank=int(rank), start_iter=start, alternating=True)
            return q7x2.attach(ddp, options)
        case ["codec", codec]:
            return q7x2.attach(ddp, q7x2.Quantize(codec, start_iter=start))
        case _:
            raise ValueError(f"no hook is called {name!r}")
    return None


def bytes_sent() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def main(spec: dict[str, Any]) -> None:
    text = standard_library()
    dist.init_process_group(spec["backend"])
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(spec["seed"])
    model = GPT(GPTConfig(**spec["model"]))
    is_torch_powersgd = spec["hook"].startswith("torch powersgd")
    bucket_mb = _ONE_BUCKET_MB if is_torch_powersgd else spec["bucket_mb"]
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    attached = add_hook(ddp, spec["hook"], spec["start"])
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=spec["lr"], betas=(0.9, 0.95))
    context = spec["model"]["context"]
    draw = Sampler(text.train, context, spec["batch"], rank, world_size, spec["seed"])
    spare = Sampler(text.train, context, spec["batch"], rank, world_size, spec["seed"] + 1)

    def compute_alone() -> float:
        x, y = spare.next()
        dist.barrier()
        start = time.monotonic()
        with ddp.no_sync():
            ddp(x, y).backward()
        seconds = torch.tensor(time.monotonic() - start, dtype=torch.float64)
        optimizer.zero_grad()
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()

    compute: list[float] = []
    steps: list[dict[str, float]] = []
    elapsed = 0.0
    for step in range(spec["steps"]):
        if step % _COMPUTE_EVERY == 0:
            compute.append(compute_alone())
        dist.barrier()
        sent, start = bytes_sent(), time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = spec["lr"] * min(1.0, (step + 1) / spec["warmup"])
        x, y = draw.next()
        loss = ddp(x, y)
        loss.backward()
        communicated = time.monotonic() - start
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.monotonic() - start
        sent = bytes_sent() - sent
        mean = loss.detach().double() / world_size
        dist.all_reduce(mean)
        elapsed += seconds
        steps.append(
            {
                "loss": mean.item(),
                "seconds": seconds,
                "reduced_seconds": communicated,
                "elapsed": elapsed,
                "bytes": sent,
            }
        )
    stats = attached.stats if attached else None
    if rank == 0:
        half = steps[len(steps) // 2 :]
        beyond = median(s["reduced_seconds"] for s in half) - median(compute)
        result = {
            "steps": steps,
            "parameters": sum(p.numel() for p in model.parameters()),
            "compute_seconds": median(compute),
            "beyond_compute_seconds": beyond,
            "step_seconds": median(s["seconds"] for s in half),
            "bytes_per_step": median(s["bytes"] for s in half),
            "final_loss": sum(s["loss"] for s in steps[-10:]) / len(steps[-10:]),
            "hook": None
            if stats is None
            else {
                "message_bytes": stats.message_bytes,
                "gradient_bytes": stats.gradient_bytes,
                "cpu_seconds": stats.cpu_seconds,
                "steps": stats.steps,
            },
        }
        Path(spec["result"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    main(json.loads(Path(sys.argv[1]).read_text()))
