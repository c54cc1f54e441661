"""Train a byte-level GPT on the sources of Python's standard library, data-parallel.

    torchrun --standalone --nproc-per-node 4 examples/train_lm.py --backend q7x2

Each step a rank takes `--accumulate` micro-batches of `--batch` windows of `--context` bytes; DDP
averages the gradients in the backward of the last one. Rank 0 logs every step with `--metrics`.

What `communication_seconds` means. It is the time that a step takes because there is more than one
rank: (the last micro-batch's forward and backward, where DDP communicates) minus (the same forward
and backward under `ddp.no_sync()`), plus the all-reduce of the logged figures. The second term,
compute alone, is measured every `--calibrate-every` steps on all ranks at once, so that they share
the machine as in a step; it is the slowest rank's, and the median of the latest five. What is
hidden behind the backward costs nothing here, and waiting for other ranks, copies into buckets and
cycles that a backend takes from compute all count, whatever the backend says of itself. A single
step's figure carries the noise of both terms, and may be below zero.

With the same seed, ranks and backend two runs have bit-identical losses on the CPU, stopped and
resumed or not. q7x2 needs Q7X2_REFINE=0 for that: otherwise it may change an algorithm after a few
steps, and with it the order of additions.
"""

import argparse
import hashlib
import math
import os
import time
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import checkpoint
import torch
import torch.distributed as dist
from corpus import Sampler, Text, standard_library
from gpt import GPT, GPTConfig
from report import Report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# A checkpoint may be resumed with others of these; every other argument shapes the losses.
NOT_IN_RECIPE = {
    "backend",
    "until",
    "validate_every",
    "calibrate_every",
    "checkpoint_dir",
    "checkpoint_every",
    "resume",
    "metrics",
}


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def available_backend(name: str) -> str:
    try:
        if dist.is_backend_available(name):
            return name
    except ValueError:  # malformed: "cpu:gloo,cuda"
        pass
    names = [name for name in dist.Backend.backend_list if dist.is_backend_available(name)]
    raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}, got {name!r}")


def model_config(args: argparse.Namespace) -> GPTConfig:
    return GPTConfig(args.layers, args.heads, args.dim, args.context, args.dropout)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    job = parser.add_argument_group("job")
    job.add_argument("--backend", type=available_backend, default="q7x2", help="of c10d")
    job.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    job.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="autocast")
    job.add_argument("--seed", type=int, default=0, help="of weights, batches and dropout")
    job.add_argument("--metrics", type=Path, help="JSON lines, one a step")

    model = parser.add_argument_group("model")
    model.add_argument("--layers", type=count, default=GPTConfig.layers)
    model.add_argument("--heads", type=count, default=GPTConfig.heads)
    model.add_argument("--dim", type=count, default=GPTConfig.dim)
    model.add_argument("--context", type=count, default=GPTConfig.context, help="bytes a window")
    model.add_argument("--dropout", type=float, default=GPTConfig.dropout)

    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=count, default=1000, help="that the schedule spans")
    training.add_argument("--until", type=count, help="stop after this step; default: all steps")
    training.add_argument("--batch", type=count, default=8, help="windows a micro-batch and rank")
    training.add_argument("--accumulate", type=count, default=1, help="micro-batches a step")
    training.add_argument("--lr", type=float, default=1e-3, help="peak, after the warm-up")
    training.add_argument("--warmup", type=int, default=50, help="steps")
    training.add_argument("--weight-decay", type=float, default=0.1)
    training.add_argument("--clip", type=float, default=1.0, help="norm of the gradient")
    training.add_argument(
        "--compress", metavar="CODEC", help="gradients by q7x2.Quantize(CODEC); needs q7x2"
    )
    training.add_argument("--bucket-mb", type=float, default=25, help="of DDP, MiB")
    training.add_argument("--validate-every", type=count, default=100, help="steps")
    training.add_argument("--validation-batches", type=count, default=8)
    training.add_argument("--calibrate-every", type=count, default=10, help="steps")

    checkpoint = parser.add_argument_group("checkpoint")
    checkpoint.add_argument("--checkpoint-dir", type=Path)
    checkpoint.add_argument("--checkpoint-every", type=count, default=100, help="steps")
    checkpoint.add_argument("--resume", action="store_true", help="from --checkpoint-dir")

    args = parser.parse_args(argv)
    args.until = args.until or args.steps
    if args.until > args.steps:
        parser.error(f"--until {args.until} is beyond --steps {args.steps}")
    if args.resume and not args.checkpoint_dir:
        parser.error("--resume needs --checkpoint-dir")
    if args.compress and args.backend != "q7x2":
        parser.error("--compress needs --backend q7x2")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device here")
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --nproc-per-node 2 examples/train_lm.py")
    try:
        model_config(args)
    except ValueError as error:
        parser.error(str(error))
    return args


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Of steps 1 to `--steps`: a linear warm-up, then a cosine down to a tenth."""
    if step <= args.warmup:
        return args.lr * step / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.55 + 0.45 * math.cos(math.pi * done))


def adamw(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """Weight decay is for matrices: biases and norms keep their size."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": args.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)


def check_replicas(model: nn.Module) -> None:
    """Raise if the ranks' parameters are not the same bits."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    digests: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest.hexdigest())
    if strays := [rank for rank, value in enumerate(digests) if value != digests[0]]:
        raise RuntimeError(
            f"expected rank 0's parameters on every rank, ranks {strays} have others"
        )


def train(args: argparse.Namespace, text: Text, device: torch.device) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    recipe = {name: value for name, value in vars(args).items() if name not in NOT_IN_RECIPE}
    recipe |= {"world_size": world_size, "text": text.digest}

    torch.manual_seed(args.seed)
    model = GPT(model_config(args)).to(device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=args.bucket_mb, gradient_as_bucket_view=True)
    if args.compress:
        import q7x2

        q7x2.attach(ddp, q7x2.Quantize(args.compress))
    optimizer = adamw(model, args)
    sampler = Sampler(text.train, args.context, args.batch, rank, world_size, args.seed)
    torch.manual_seed(args.seed + 1 + rank)  # dropout differs between ranks
    first = 0
    if args.resume:
        first = checkpoint.load(args.checkpoint_dir, recipe, model, optimizer, sampler)

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def reduced(values: list[float], op: dist.ReduceOp.RedOpType) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(tensor, op)
        return tensor.tolist()

    def validation_sampler() -> Sampler:
        return Sampler(text.validation, args.context, args.batch, rank, world_size, seed=0)

    def loss_of(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, y = (part.to(device) for part in batch)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.dtype == "bfloat16"):
            return module(x, y)

    def rehearse(communicate: bool) -> float:
        """Seconds of a forward and backward that leave no trace in the weights or generators."""
        batch = validation_sampler().next()
        cuda = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(cuda), nullcontext() if communicate else ddp.no_sync():
            start = now()
            loss_of(ddp, batch).backward()
            seconds = now() - start
        optimizer.zero_grad()
        return seconds

    @torch.no_grad()
    def validation_loss() -> float:
        model.eval()
        batches = validation_sampler()
        losses = [loss_of(model, batches.next()) for _ in range(args.validation_batches)]
        model.train()
        mean = torch.stack(losses).mean().item()
        return reduced([mean / world_size], dist.ReduceOp.SUM)[0]

    # After its first backward DDP lays out its buckets anew, by the order of the gradients. Have
    # that done before the first step, or a resumed run sums in another order than one not stopped.
    # A hook would keep what it lost of gradients that nobody uses, so it has no rehearsal.
    if not args.compress:
        rehearse(communicate=True)
    compute: deque[float] = deque(maxlen=5)

    parameters = sum(p.numel() for p in model.parameters())
    title = f"{parameters / 1e6:.1f} M parameters, {world_size} x {args.backend}"
    tokens = world_size * args.accumulate * args.batch * args.context
    with Report(args.metrics, title, first, args.steps) if rank == 0 else nullcontext() as report:
        for step in range(first + 1, args.until + 1):
            if (step - first - 1) % args.calibrate_every == 0:
                compute += reduced([rehearse(communicate=False)], dist.ReduceOp.MAX)

            start, cpu_start = now(), time.process_time()
            loss = torch.zeros((), device=device)
            for micro in range(1, args.accumulate + 1):
                batch = sampler.next()
                last = micro == args.accumulate
                micro_start = now()
                with nullcontext() if last else ddp.no_sync():
                    micro_loss = loss_of(ddp, batch) / args.accumulate
                    micro_loss.backward()
                loss += micro_loss.detach()
            communication = now() - micro_start - median(compute)
            gradient_norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            optimizer.step()
            optimizer.zero_grad()
            reduce_start, cpu = now(), time.process_time() - cpu_start
            mean_loss, cpu = reduced([loss.item() / world_size, cpu], dist.ReduceOp.SUM)
            end = now()
            if report:
                report.step(
                    {
                        "step": step,
                        "loss": mean_loss,
                        "gradient_norm": gradient_norm.item(),
                        "seconds": end - start,
                        "communication_seconds": communication + end - reduce_start,
                        "cpu_seconds": cpu,
                        "tokens_per_second": tokens / (end - start),
                    }
                )

            if step % args.validate_every == 0 or step == args.until:
                value = validation_loss()
                if report:
                    report.validation({"step": step, "validation_loss": value})
            if args.checkpoint_dir and (step % args.checkpoint_every == 0 or step == args.until):
                checkpoint.save(args.checkpoint_dir, recipe, step, model, optimizer, sampler)
        check_replicas(model)


def main() -> None:
    args = parse_arguments()
    device = torch.device(args.device)
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    text = standard_library()
    dist.init_process_group(args.backend)
    try:
        train(args, text, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
