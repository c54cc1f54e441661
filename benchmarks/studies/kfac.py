"""Steps and seconds to the same loss with SGD, Adam and K-FAC, and the bytes of its inverses.

Ranks on this machine train a CNN on scikit-learn's digits with DDP over q7x2, one optimizer after
the other, from the same weights and with the same batches. A training ends at the target loss on
what is held out. The bytes that a rank receives are counted for the broadcasts of all inverses, and
for an all-gather of the same ones. A run that was stopped goes on with the next seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from rich.progress import track
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import ranks, report, timing
from benchmarks.harness.arguments import chosen, option
from benchmarks.studies.train.tasks import Digits

# By label: the best of a grid, by steps to the target at the defaults below, with seeds 10 and 11.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 0.016},
    "K-FAC": {"lr": 0.3, "momentum": 0.5, "damping": 0.1, "kl_clip": 0.01},
}

OPTIONS = {
    "ranks": 4,
    "batch": option(16, "of a rank"),
    "width": option(8, "channels of the first layer"),
    "target": option(0.1, "the loss to be reached"),
    "steps": option(1000, "at most"),
    "every": option(5, "steps between two looks at the loss"),
    "seeds": 5,
    "fresh": option(False, "measure seeds of --out anew"),
}


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    spec = chosen(args, "ranks", "batch", "width", "target", "steps", "every")
    seeds = [] if args.fresh else kept(args.out, spec)
    for seed in track(range(len(seeds), args.seeds), "trainings"):
        seeds.append(ranks.run(__name__, {**spec, "seed": seed}, args.ranks))
        yield {**spec, "seeds": seeds}


def lines(body: Mapping[str, Any]) -> list[str]:
    seeds = body["seeds"]
    received = seeds[0]["received"]
    return [
        *(sentence(label, [each[label] for each in seeds]) for label in OPTIMIZERS),
        f"inverses, received per rank: {received['broadcast'] / 1e6:.3f} MB by broadcasts, "
        f"{received['all_gather'] / 1e6:.3f} MB by an all-gather",
    ]


def kept(path: Path, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The seeds of an earlier run of the same trainings, so that a run goes on where it stopped."""
    if not path.exists():
        return []
    earlier = json.loads(path.read_text())
    if any(earlier[name] != value for name, value in spec.items()):
        raise ValueError(f"{path} has other trainings; give --fresh, or another --out")
    seeds: list[dict[str, Any]] = earlier["seeds"]
    return seeds


def sentence(label: str, runs: list[dict[str, Any]]) -> str:
    """The medians of an optimizer's trainings, for a person."""
    reached = [run for run in runs if run["steps"] is not None]
    if len(reached) < len(runs):
        return f"{label:6} reached the target in {len(reached)} of {len(runs)} trainings"
    steps = statistics.median(run["steps"] for run in runs)
    seconds = statistics.median(run["seconds"] for run in runs)
    return f"{label:6} {steps:6.0f} steps, {report.duration(seconds):>8} to the target"


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the trainings of one seed by optimizer, and the bytes of the inverses."""
    dist.init_process_group("q7x2")
    figures: dict[str, Any] = {}
    for label in OPTIMIZERS:
        figures[label], optimizer = train(label, spec)
        if label == "K-FAC":
            figures["received"] = count_bytes(optimizer)
    return figures


def train(label: str, spec: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Steps and seconds to the target, None and the whole time if it is not reached."""
    task = Digits({"batch": spec["batch"], "width": spec["width"]})
    torch.manual_seed(spec["seed"])
    model = task.model()
    ddp = DistributedDataParallel(model)
    made = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}
    options = OPTIMIZERS[label]
    optimizer: Any = (
        q7x2.optim.KFAC(ddp, **options)
        if label == "K-FAC"
        else made[label](ddp.parameters(), **options)
    )
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = task.batches(rank, world_size, spec["seed"])
    held_out = task.held_out(rank, world_size)
    seconds = 0.0

    def train_step() -> None:
        optimizer.zero_grad()
        task.loss(ddp, next(batches)).backward()
        optimizer.step()

    for step in range(1, spec["steps"] + 1):
        dist.barrier()
        seconds += timing.timed(train_step)
        if step % spec["every"]:
            continue
        if task.mean_score(model, held_out)[0] <= spec["target"]:
            return {"steps": step, "seconds": seconds}, optimizer
    return {"steps": None, "seconds": seconds}, optimizer


def count_bytes(optimizer: Any) -> dict[str, int]:
    """What this rank receives, summed over the ranks and divided by their number."""
    from q7x2.optim.kfac_exchange import Inversion, exchange_inverses, owners_of, triangle

    group, device = optimizer.group, torch.device("cpu")
    dims = [dim for layer in optimizer._layers for dim in layer.dims]
    due = [Inversion(dim, lambda dim=dim: torch.eye(dim)) for dim in dims]  # type: ignore[misc]
    owners = owners_of(dims, group.size())
    shares = [0] * group.size()
    for dim, owner in zip(dims, owners, strict=True):
        shares[owner] += triangle(dim)
    mine = torch.zeros(max(shares))
    everybody = torch.zeros(max(shares) * group.size())

    def received(call: Any) -> int:
        dist.barrier()
        before = _received()
        call()
        total = torch.tensor(_received() - before)
        dist.all_reduce(total)
        return int(total) // group.size()

    return {
        "broadcast": received(lambda: exchange_inverses(due, device, group)),
        "all_gather": received(lambda: dist.all_gather_into_tensor(everybody, mine)),
    }


def _received() -> int:
    """Bytes of broadcasts and all-gathers that this process has received."""
    return sum(
        counted["received_network_bytes"] + counted["received_memory_bytes"]
        for group in q7x2.stats()["groups"]
        for kind, counted in group["operations"].items()
        if kind in ("broadcast", "all_gather")
    )
