"""What q7x2 does on real GPUs: `ranks` and `training`, each of which prints one JSON object last.

`ranks`: several ranks on one GPU make an all-reduce with int4 and a dense one, in turns: medians
over the rounds of the slowest rank's time, and how far the results are from the exact sum.

`training`: a step of a Transformer under DDP or FSDP2, with one backend. ``--cases`` prints which
cases this machine can compare: NCCL needs a GPU per rank, so Gloo stands beside q7x2 if there is
one GPU. `./dev gpu` runs both, and has the tables.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import statistics
import tempfile
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

INT4 = "q7x2 int4"
RANKS_WARM_UP, TRAINING_WARM_UP = 2, 3

Body = Callable[[int, int, str, argparse.Namespace], dict[str, Any]]


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", required=True)
    ranks = parts.add_parser("ranks")
    ranks.set_defaults(measure=measure_ranks)
    ranks.add_argument("--device", default="cuda:0")
    ranks.add_argument("--ranks", type=int, default=4)
    ranks.add_argument("--bytes", type=int, default=256 << 20, help="of each rank's tensor")
    ranks.add_argument("--rounds", type=int, default=11)
    training = parts.add_parser("training")
    training.set_defaults(measure=measure_training)
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
    print(json.dumps(args.measure(args)))


def measure_ranks(args: argparse.Namespace) -> dict[str, Any]:
    outcomes = run_processes(_reduce, args.ranks, args)
    seconds = {
        call: statistics.median(
            max(times)
            for times in zip(*(outcome["seconds"][call] for outcome in outcomes), strict=True)
        )
        for call in outcomes[0]["seconds"]
    }
    return {
        "bytes": args.bytes,
        "ranks": args.ranks,
        "rounds": args.rounds,
        "seconds": seconds,
        "errors": outcomes[0]["errors"],
    }


def measure_training(args: argparse.Namespace) -> dict[str, Any]:
    gpus = torch.cuda.device_count() if args.device == "cuda" else 0
    if args.cases:
        other = "nccl" if gpus > 1 else "gloo"
        return {"cases": ["q7x2", *([INT4] if args.cases == "ddp" else []), other]}
    ranks = gpus if gpus > 1 else 2
    outcomes = run_processes(_train, ranks, args)
    return {
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


def _reduce(rank: int, world_size: int, store: str, args: argparse.Namespace) -> dict[str, Any]:
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
    for step in range(RANKS_WARM_UP + args.rounds):
        for call, run in calls.items():
            x.copy_(own)
            residual.zero_()
            synchronize(device)
            dist.barrier()
            begin = time.perf_counter()
            run(step)
            synchronize(device)
            if step >= RANKS_WARM_UP:
                seconds[call].append(time.perf_counter() - begin)
            if step == 0:
                errors[call] = float((x.cpu().double() - exact).norm() / exact.norm())
    # A fast wrong result is no result.
    assert errors["dense"] < 1e-6, errors
    assert errors["int4"] < 0.3, errors
    dist.destroy_process_group()
    return {"seconds": seconds, "errors": errors}


def _train(rank: int, world_size: int, store: str, args: argparse.Namespace) -> dict[str, Any]:
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
    for step in range(TRAINING_WARM_UP + args.steps):
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
        if step >= TRAINING_WARM_UP:
            seconds.append(time.perf_counter() - begin)
    result = {"parameters": parameters, "loss": float(loss.detach()), "seconds": seconds}
    dist.destroy_process_group()
    return result


def run_processes(body: Body, count: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Call ``body(rank, count, store, args)`` in ``count`` processes, and return all results.

    ``store`` is an ``init_method``. If a rank fails, the program ends with exit code 1.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        pipes, processes = [], []
        for rank in range(count):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (theirs, body, rank, count, f"file://{directory}/store", args)
            process = context.Process(target=_send, args=arguments, daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        outcomes = []
        for rank, pipe in enumerate(pipes):
            try:
                outcomes.append(pipe.recv())
            except EOFError:
                raise SystemExit(f"rank {rank} failed, see above") from None
        for process in processes:
            process.join()
        return outcomes


def _send(
    pipe: Any, body: Body, rank: int, count: int, store: str, args: argparse.Namespace
) -> None:
    pipe.send(body(rank, count, store, args))


def synchronize(device: Any) -> None:
    """Wait until ``device`` has done all its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
