"""A step of a Transformer under DDP or FSDP2, with one backend.

Prints one JSON object. ``--cases`` prints which cases this machine can compare: NCCL needs a GPU
per rank, so Gloo stands beside q7x2 if there is one GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from typing import Any

from benchmarks.gpu.processes import run_processes, synchronize

WARM_UP = 3
INT4 = "q7x2 int4"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", metavar="WHAT", choices=("ddp", "fsdp"))
    parser.add_argument("--what", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--case", default="q7x2", help="a backend, or 'q7x2 int4' with DDP")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank")
    parser.add_argument("--length", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--steps", type=int, default=15)
    args = parser.parse_args()

    import torch

    gpus = torch.cuda.device_count() if args.device == "cuda" else 0
    if args.cases:
        other = "nccl" if gpus > 1 else "gloo"
        print(json.dumps({"cases": ["q7x2", *([INT4] if args.cases == "ddp" else []), other]}))
        return
    ranks = gpus if gpus > 1 else 2
    outcomes = run_processes(_rank, ranks, args)
    result = {
        "what": args.what,
        "case": args.case,
        "ranks": ranks,
        "gpus": gpus,
        "parameters": outcomes[0]["parameters"],
        "loss": outcomes[0]["loss"],
        "seconds": statistics.median(
            max(times) for times in zip(*(o["seconds"] for o in outcomes), strict=True)
        ),
    }
    print(json.dumps(result))


def _rank(rank: int, world_size: int, store: str, args: argparse.Namespace) -> dict[str, Any]:
    import q7x2
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = args.case.split()[0]
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world_size)
    torch.manual_seed(0)
    vocabulary = 8192
    layer = nn.TransformerEncoderLayer(
        args.width, max(1, args.width // 64), 4 * args.width, dropout=0.0, batch_first=True
    )
    model: Any = nn.Sequential(
        nn.Embedding(vocabulary, args.width),
        *(copy.deepcopy(layer) for _ in range(args.layers)),
        nn.Linear(args.width, vocabulary),
    ).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    if args.what == "ddp":
        model = DistributedDataParallel(model)
        if args.case == INT4:
            q7x2.attach(model, q7x2.Quantize("hadamard+int4:g=128"))
    else:
        mesh = init_device_mesh(args.device, (world_size,))
        for each in (*model, model):
            fully_shard(each, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    seconds = []
    for step in range(WARM_UP + args.steps):
        tokens = torch.randint(0, vocabulary, (args.batch, args.length), generator=generator)
        tokens = tokens.to(device)
        synchronize(device)
        dist.barrier()
        begin = time.perf_counter()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronize(device)
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - begin)
    result = {"parameters": parameters, "loss": float(loss.detach()), "seconds": seconds}
    dist.destroy_process_group()
    return result


if __name__ == "__main__":
    main()
