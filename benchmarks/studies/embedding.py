"""What a large embedding costs on the network per step: owners of rows beside DDP over Gloo.

Virtual hosts with one rank each train the same model in five ways, in the same processes and in
turns: `q7x2.embedding.ShardedEmbedding` over q7x2 and over Gloo, and DDP with a sparse and with a
dense gradient. The communication of a step is its time less the time of the same step without the
other ranks. All ways must have the same losses. It needs root.
"""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import q7x2
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import ranks, report, timing
from benchmarks.harness.arguments import chosen, option
from tests.lab import Topology

OURS = "ShardedEmbedding, q7x2"
# What is compared with it, and how many times longer its communication shall be.
GOALS = {"DDP, dense, gloo": 10.0, "DDP, sparse=True, gloo": 2.0}
WAYS = (OURS, "ShardedEmbedding, gloo", "DDP, sparse=True, q7x2", *reversed(GOALS))
RATE = 0.1
LARGEST_DIFFERENCE = 1e-4  # of two losses, relative: rounding

OPTIONS = {
    "hosts": 4,
    "rate": option("1gbit", "of each host's NIC, as tc spells it"),
    "rows": 1_000_000,
    "dim": 64,
    "share": option(0.002, "of the rows, in a rank's batch"),
    "steps": 20,
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    if not 0 < args.share * args.rows <= args.rows / 4:
        raise ValueError(f"--share must be more than 0 and at most 0.25, got {args.share}")
    spec = chosen(args, *OPTIONS)
    topology = Topology(hosts=args.hosts, rate=args.rate)
    return {**spec, "ways": ranks.run(__name__, spec, topology=topology, env=ranks.UNREFINED)}


def lines(body: Mapping[str, Any]) -> list[str]:
    ways = body["ways"]
    return [sentence(name, figures, ways[OURS]) for name, figures in ways.items()]


def sentence(name: str, figures: dict[str, Any], ours: dict[str, Any]) -> str:
    """A way's row for a person; the ratio is that of its communication and ours."""
    times = [report.duration(max(0.0, figures[key])) for key in ("communication", "step")]
    ratio = figures["communication"] / ours["communication"]
    goal = f", goal {GOALS[name]:g} x" if name in GOALS else ""
    return (
        f"{name:24} communication {times[0]:>7} of {times[1]:>7} per step ({ratio:.2f} x{goal}), "
        f"{figures['bytes_sent'] / 1e6:.1f} MB sent, CPU {figures['cpu_seconds']:.3f} s"
    )


Step = Callable[[Any], Any]


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of each way."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = {name: dist.new_group(backend=name) for name in ("q7x2", "gloo")}
    losses: dict[str, list[torch.Tensor]] = {name: [] for name in WAYS}
    steps: dict[str, Callable[[Any], object]] = {}
    for name in WAYS:
        together, alone = make(name, groups, spec)
        steps[name] = lambda batch, name=name, step=together: losses[name].append(step(batch))  # type: ignore[misc]
        steps[f"{name}, alone"] = alone
    measured, _ = timing.in_turns(steps, spec["steps"], lambda step: draw(spec, step, rank))
    figures = {name: summarize(name, measured, losses[name]) for name in WAYS}
    reference = figures[next(iter(GOALS))]["losses"]
    for name, each in figures.items():
        pairs = zip(each["losses"], reference, strict=True)
        each["loss_difference"] = max(abs(a - b) / abs(b) for a, b in pairs)
        if not each["loss_difference"] < LARGEST_DIFFERENCE:
            raise ValueError(f"{name} has losses {each['losses']}, dense DDP has {reference}")
    return figures


def draw(spec: dict[str, Any], step: int, rank: int) -> tuple[Any, Any]:
    """Distinct ids, of which small ones are in most batches (Zipf's law), and their targets."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    rows, count = spec["rows"], max(1, round(spec["share"] * spec["rows"]))
    ids = torch.empty(0, dtype=torch.int64)
    while len(ids) < count:
        drawn = rows ** torch.rand(8 * count, generator=generator, dtype=torch.float64)
        ids = torch.cat([ids, drawn.long() - 1]).unique()
    ids = ids[torch.randperm(len(ids), generator=generator)[:count]]
    return ids, (ids % 2).float()


def make(name: str, groups: dict[str, Any], spec: dict[str, Any]) -> tuple[Step, Step]:
    """A step of a way with the other ranks, and one without; all begin with the same rows."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(spec["dim"], 16), nn.Tanh(), nn.Linear(16, 1))
    table = torch.randn(spec["rows"], spec["dim"])
    group = groups[name.rsplit(" ", 1)[1]]
    sgd = functools.partial(torch.optim.SGD, lr=RATE)
    if not name.startswith("ShardedEmbedding"):
        embedding = nn.Embedding(spec["rows"], spec["dim"], sparse="sparse" in name, _weight=table)
        ddp = DistributedDataParallel(nn.Sequential(embedding, *dense), process_group=group)
        optimizer = sgd(ddp.parameters())

        def step(batch: Any, synchronised: bool) -> Any:
            ddp.require_backward_grad_sync = synchronised
            # Without the other ranks' gradients nothing may change, at the same cost.
            optimizer.param_groups[0]["lr"] = RATE if synchronised else 0.0
            return train(ddp, [optimizer], batch)

        return (
            functools.partial(step, synchronised=True),
            functools.partial(step, synchronised=False),
        )

    def trainer(owners: Any, others: Any) -> Step:
        rows = q7x2.embedding.ShardedEmbedding(
            spec["rows"], spec["dim"], group=owners, optimizer=sgd
        )
        rows.load_table(table)
        ddp = DistributedDataParallel(
            nn.Sequential(rows, *copy.deepcopy(dense)), process_group=others
        )
        return lambda batch: train(ddp, [sgd(ddp.parameters()), rows], batch)

    me = dist.get_rank()
    backend = name.rsplit(" ", 1)[1]
    single = dist.new_group([me], backend=backend, use_local_synchronization=True)
    return trainer(group, group), trainer(single, single)


def train(model: Any, updates: list[Any], batch: tuple[Any, Any]) -> Any:
    ids, target = batch
    model.zero_grad()
    loss = F.mse_loss(model(ids).squeeze(1), target)
    loss.backward()
    for update in updates:
        update.step()
    return loss.detach()


def summarize(
    name: str, measured: dict[str, dict[str, Any]], losses: list[torch.Tensor]
) -> dict[str, Any]:
    """The figures of a way, per step; losses are means over the ranks."""
    means = torch.stack(losses).double()
    dist.all_reduce(means)
    step, alone = measured[name], measured[f"{name}, alone"]
    return {
        "step": step["seconds"],
        "alone": alone["seconds"],
        "communication": step["seconds"] - alone["seconds"],
        "cpu_seconds": step["cpu_seconds"],
        "bytes_sent": step["bytes_sent"],
        "losses": (means / dist.get_world_size()).tolist(),
    }
