"""Several ranks on one GPU: an all-reduce with int4 beside the dense one, in turns.

Prints one JSON object: medians over the rounds of the slowest rank's time, and how far the results
are from the exact sum.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.processes import run_processes, synchronize

WARM_UP = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=256 << 20, help="of each rank's tensor")
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()

    outcomes = run_processes(_rank, args.ranks, args)
    seconds = {
        call: statistics.median(
            max(times)
            for times in zip(*(outcome["seconds"][call] for outcome in outcomes), strict=True)
        )
        for call in outcomes[0]["seconds"]
    }
    result = {
        "bytes": args.bytes,
        "ranks": args.ranks,
        "rounds": args.rounds,
        "seconds": seconds,
        "errors": outcomes[0]["errors"],
    }
    print(json.dumps(result))


def _rank(rank: int, world_size: int, store: str, args: argparse.Namespace) -> dict[str, Any]:
    import q7x2
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("q7x2", init_method=store, rank=rank, world_size=world_size)
    elements = args.bytes // 4
    inputs = [
        torch.randn(elements, generator=torch.Generator().manual_seed(r)) for r in range(world_size)
    ]
    exact = torch.stack(inputs).double().sum(0)
    own = inputs[rank].to(device)
    residual = torch.zeros_like(own)
    x = torch.empty_like(own)
    calls: dict[str, Callable[[int], Any]] = {
        "dense": lambda step: dist.all_reduce(x),
        "int4": lambda step: q7x2.all_reduce(x, codec="int4", residual=residual, step=step),
    }
    seconds: dict[str, list[float]] = {call: [] for call in calls}
    errors = {}
    for step in range(WARM_UP + args.rounds):
        for call, run in calls.items():
            x.copy_(own)
            residual.zero_()
            synchronize(device)
            dist.barrier()
            begin = time.perf_counter()
            run(step)
            synchronize(device)
            if step >= WARM_UP:
                seconds[call].append(time.perf_counter() - begin)
            if step == 0:
                errors[call] = float((x.cpu().double() - exact).norm() / exact.norm())
    # A fast wrong result is no result.
    assert errors["dense"] < 1e-6, errors
    assert errors["int4"] < 0.3, errors
    dist.destroy_process_group()
    return {"seconds": seconds, "errors": errors}


if __name__ == "__main__":
    main()
