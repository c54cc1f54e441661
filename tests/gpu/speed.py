"""What q7x2 does on real GPUs: `ranks` and `training`, each of which prints one JSON object last.

`ranks`: several ranks on one GPU make an all-reduce with int4 and a dense one, in turns: medians
over the rounds of the slowest rank's time, and how far the results are from the exact sum.

`training`: a step of a Transformer under DDP or FSDP2, with one backend. ``--cases`` prints which
cases this machine can compare: NCCL needs a GPU per rank, so Gloo stands beside q7x2 if there is
one GPU. `measure.py` runs both, and has the tables.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import ranks
from tests.lab import command

_MODULE = "tests.gpu.speed"  # also where it is `__main__`
INT4 = "q7x2 int4"
RANKS_WARM_UP, TRAINING_WARM_UP = 2, 3


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", required=True)
    of_ranks = parts.add_parser("ranks")
    of_ranks.add_argument("--device", default="cuda:0")
    of_ranks.add_argument("--ranks", type=int, default=4)
    of_ranks.add_argument("--bytes", type=int, default=256 << 20, help="of each rank's tensor")
    of_ranks.add_argument("--rounds", type=int, default=11)
    training = parts.add_parser("training")
    training.add_argument("--cases", metavar="WHAT", choices=("ddp", "fsdp"))
    training.add_argument("--what", choices=("ddp", "fsdp"), default="ddp")
    training.add_argument("--case", default="q7x2", help="a backend, or 'q7x2 int4' with DDP")
    training.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    training.add_argument("--layers", type=int, default=12)
    training.add_argument("--width", type=int, default=768)
    training.add_argument("--batch", type=int, default=8, help="sequences per rank")
    training.add_argument("--length", type=int, default=256, help="tokens per sequence")
    training.add_argument("--steps", type=int, default=15)
    args = parser.parse_args(argv)
    measure = measure_ranks if args.part == "ranks" else measure_training
    print(json.dumps(measure(args)))


def measure_ranks(args: argparse.Namespace) -> dict[str, Any]:
    found = ranks.run(_MODULE, vars(args), args.ranks)
    return {"bytes": args.bytes, "ranks": args.ranks, "rounds": args.rounds, **found}


def measure_training(args: argparse.Namespace) -> dict[str, Any]:
    gpus = torch.cuda.device_count() if args.device == "cuda" else 0
    if args.cases:
        other = "nccl" if gpus > 1 else "gloo"
        return {"cases": ["q7x2", *([INT4] if args.cases == "ddp" else []), other]}
    count = gpus if gpus > 1 else 2
    found = ranks.run(_MODULE, vars(args), count)
    return {"what": args.what, "case": args.case, "ranks": count, "gpus": gpus, **found}


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of a part; seconds are medians of the slowest rank's."""
    args = argparse.Namespace(**spec)
    return _reduce(args) if args.part == "ranks" else _train(args)


def _reduce(args: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("q7x2")
    inputs = [
        torch.randn(args.bytes // 4, generator=torch.Generator().manual_seed(rank))
        for rank in range(dist.get_world_size())
    ]
    exact = torch.stack(inputs).double().sum(0)
    own = inputs[dist.get_rank()].to(device)
    residual = torch.zeros_like(own)
    x = torch.empty_like(own)
    calls: dict[str, Callable[[int], Any]] = {
        "dense": lambda step: dist.all_reduce(x),
        "int4": lambda step: q7x2.all_reduce(x, codec="int4", residual=residual, step=step),
    }
    seconds: dict[str, list[float]] = {call: [] for call in calls}
    errors = {}
    for step in range(RANKS_WARM_UP + args.rounds):
        for call, run in calls.items():
            x.copy_(own)
            residual.zero_()
            begin = _begin(device)
            run(step)
            synchronize(device)
            seconds[call].append(time.perf_counter() - begin)
            if step == 0:
                errors[call] = float((x.cpu().double() - exact).norm() / exact.norm())
    # A fast wrong result is no result.
    assert errors["dense"] < 1e-6, errors
    assert errors["int4"] < 0.3, errors
    medians = {call: _of_slowest(times[RANKS_WARM_UP:]) for call, times in seconds.items()}
    return {"seconds": medians, "errors": errors}


def _train(args: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(args.case.split()[0])
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
        mesh = init_device_mesh(args.device, (dist.get_world_size(),))
        for each in (*model, model):
            fully_shard(each, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    seconds = []
    for _ in range(TRAINING_WARM_UP + args.steps):
        tokens = torch.randint(0, vocabulary, (args.batch, args.length), generator=generator)
        tokens = tokens.to(device)
        begin = _begin(device)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
    slowest = _of_slowest(seconds[TRAINING_WARM_UP:])
    return {"parameters": parameters, "loss": float(loss.detach()), "seconds": slowest}


def _begin(device: torch.device) -> float:
    """The time when all ranks have done their work."""
    synchronize(device)
    dist.barrier()
    return time.perf_counter()


def _of_slowest(seconds: list[float]) -> float:
    """The median of the slowest rank's times."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, seconds)
    return statistics.median(map(max, *every))


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has done all its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


if __name__ == "__main__":
    sys.exit(command.run(main, sys.argv[1:]))
