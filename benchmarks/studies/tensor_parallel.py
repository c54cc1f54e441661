"""What overlap saves: steps of an MLP in tensor parallelism, with it and without, in turns.

Virtual hosts with one rank each share the layers of an MLP and the rows of its input (sequence
parallelism). A step is a forward and a backward. The ways take turns in the same processes:
ColwiseOverlap and RowwiseOverlap of q7x2.tensor_parallel, and PyTorch's ColwiseParallel and
RowwiseParallel over q7x2 and over Gloo. It needs root.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from benchmarks.harness import arguments, ranks, report, timing
from benchmarks.harness.arguments import chosen, option
from tests.lab import Topology

OURS, PLAIN, GLOO = "overlap, q7x2", "no overlap, q7x2", "no overlap, gloo"
WAYS = (OURS, PLAIN, GLOO)
GOAL = 1.2  # times as fast as `PLAIN`

OPTIONS = {
    "ranks": option("2,4", "numbers of virtual hosts", type=arguments.rank_counts),
    "rates": option(
        "100mbit,200mbit", "of each host's NIC, as tc spells them", type=arguments.names
    ),
    "batch": 1,
    "sequence": option(512, "rows, of all ranks together"),
    "width": option(1024, "features between the layers"),
    "hidden": option(4096, "features inside a layer"),
    "layers": 2,
    "dtype": option("float32", choices=("float32", "bfloat16")),
    "chunks": option(None, "per shard; default: each layer chooses", type=int),
    "rounds": 7,
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    spec = chosen(args, *OPTIONS)
    cases = []
    for rate, count in itertools.product(spec.pop("rates"), spec.pop("ranks")):
        topology = Topology(hosts=count, rate=rate)
        found = ranks.run(__name__, spec, topology=topology, env=ranks.UNREFINED)
        cases.append({"rate": rate, **found})
    return {**spec, "goal": GOAL, "cases": cases}


def row_lines(case: dict[str, Any]) -> Iterator[str]:
    """The times of all ways of a case, and what the goal is."""
    ways = case["ways"]
    ratio = ways[PLAIN]["seconds"] / ways[OURS]["seconds"]
    yield f"{case['ranks']} ranks at {case['rate']}"
    yield from report.ways(ways)
    yield f"  {ratio:.2f} x as fast as {PLAIN}, goal {GOAL:.2f} x"
    yield (
        f"  chunks {case['chunks']}, {case['waited']:.0%} of the layers' time waited for messages"
    )
    if "predicted_forward" in case:
        predicted, measured = case["predicted_forward"], case["measured_forward"]
        yield (
            f"  the overlapped forwards: predicted {report.duration(predicted)}, measured "
            f"{report.duration(measured)} ({predicted / measured - 1:+.0%})"
        )


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures."""
    dist.init_process_group("gloo")
    meshes = {
        name: DeviceMesh.from_group(dist.new_group(backend=name), "cpu")
        for name in ("q7x2", "gloo")
    }
    models = {
        OURS: made(spec, meshes["q7x2"], overlap=True),
        PLAIN: made(spec, meshes["q7x2"], overlap=False),
        GLOO: made(spec, meshes["gloo"], overlap=False),
    }
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    shape = (spec["batch"], spec["sequence"], spec["width"])
    dtype = getattr(torch, spec["dtype"])
    x = torch.randn(shape, generator=generator).to(dtype).chunk(ranks, 1)[rank].contiguous()
    case = compare(models, x, spec["rounds"])
    overlaps = [layer.overlap for layer in models[OURS].modules() if hasattr(layer, "overlap")]
    case["ranks"] = ranks
    case["chunks"] = [overlap.chunks for overlap in overlaps]
    if all(overlap.candidates for overlap in overlaps):
        case["predicted_forward"] = sum(overlap.candidates[0].seconds for overlap in overlaps)
    case["measured_forward"] = sum(
        overlap.forward_seconds / overlap.forwards for overlap in overlaps
    )
    seconds = sum(overlap.seconds for overlap in overlaps)
    case["waited"] = sum(overlap.waited_seconds for overlap in overlaps) / seconds
    return case


def made(spec: dict[str, Any], mesh: Any, overlap: bool) -> Any:
    """The MLP over the ranks of ``mesh``; the same weights in all ways."""
    torch.manual_seed(0)
    width, hidden = spec["width"], spec["hidden"]
    layers: list[nn.Module] = []
    plan: dict[str, Any] = {}
    for index in range(spec["layers"]):
        layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)]
        up, down = str(3 * index), str(3 * index + 2)
        if overlap:
            plan[up] = q7x2.tensor_parallel.ColwiseOverlap(chunks=spec["chunks"])
            plan[down] = q7x2.tensor_parallel.RowwiseOverlap(chunks=spec["chunks"])
        else:
            plan[up] = ColwiseParallel(input_layouts=Shard(1))
            plan[down] = RowwiseParallel(output_layouts=Shard(1))
    model = nn.Sequential(*layers).to(getattr(torch, spec["dtype"]))
    return parallelize_module(model, mesh, plan)


def compare(models: dict[str, Any], x: Any, rounds: int) -> dict[str, Any]:
    """A forward and a backward of each model, in turns."""
    outputs = {}

    def given(_: int) -> Any:
        for model in models.values():
            model.zero_grad()
        return x.clone().requires_grad_()

    def step(name: str, x: Any) -> None:
        y = models[name](x)
        outputs[name] = y.detach()
        y.backward(outputs[name])

    ways, inputs = timing.in_turns({name: partial(step, name) for name in WAYS}, rounds, given)
    for name in WAYS:
        pairs = ((outputs[name], outputs[GLOO]), (inputs[name].grad, inputs[GLOO].grad))
        for mine, other in pairs:
            if (mine - other).norm() > 0.02 * other.norm():
                raise ValueError(f"{name} has another result than {GLOO}")
    return {"ways": ways}
