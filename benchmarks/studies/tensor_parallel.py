"""What overlap saves: steps of an MLP in tensor parallelism, with it and without, in turns.

Virtual hosts with one rank each share the layers of an MLP and the rows of its input (sequence
parallelism). A step is a forward and a backward. The ways take turns in the same processes:
ColwiseOverlap and RowwiseOverlap of q7x2.tensor_parallel, and PyTorch's ColwiseParallel and
RowwiseParallel over q7x2 and over Gloo. It needs root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

from benchmarks.harness import arguments, report, study
from benchmarks.harness.lab import Lab, Topology

OURS, PLAIN, GLOO = "overlap, q7x2", "no overlap, q7x2", "no overlap, gloo"
WAYS = (OURS, PLAIN, GLOO)
GOAL = 1.2  # times as fast as `PLAIN`


def main(argv: list[str]) -> None:
    parser = study.parser(__name__, __doc__)
    parser.add_argument("--ranks", default="2,4", help="numbers of virtual hosts")
    parser.add_argument(
        "--rates", default="100mbit,200mbit", help="of each host's NIC, as tc spells them"
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=512, help="rows, of all ranks together")
    parser.add_argument("--width", type=int, default=1024, help="features between the layers")
    parser.add_argument("--hidden", type=int, default=4096, help="features inside a layer")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--chunks", type=int, help="per shard; default: each layer chooses")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args(argv)
    sizes = [int(each) for each in arguments.names(args.ranks)]
    names = ("batch", "sequence", "width", "hidden", "layers", "dtype", "chunks", "rounds")
    spec = study.chosen(args, *names)
    cases = [measure(ranks, rate, spec) for rate in arguments.names(args.rates) for ranks in sizes]
    study.publish(args.out, {**spec, "goal": GOAL, "cases": cases}, lines)


def measure(ranks: int, rate: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The figures of one number of ranks."""
    with Lab(Topology(hosts=ranks, rate=rate)) as lab:
        # Too few calls to refine a choice.
        found = study.run(__name__, spec, lab=lab, env={"Q7X2_REFINE": "0"})
    return {"rate": rate, **found}


def lines(body: Mapping[str, Any]) -> list[str]:
    """For a person."""
    return [line for case in body["cases"] for line in _lines(case)]


def _lines(case: dict[str, Any]) -> Iterator[str]:
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


# ---- one rank -----------------------------------------------------------------------------------


def rank_main(spec: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the figures on rank 0."""
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
    return case if rank == 0 else None


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

    ways, inputs = study.in_turns({name: partial(step, name) for name in WAYS}, rounds, given)
    for name in WAYS:
        pairs = ((outputs[name], outputs[GLOO]), (inputs[name].grad, inputs[GLOO].grad))
        for mine, other in pairs:
            if (mine - other).norm() > 0.02 * other.norm():
                raise ValueError(f"{name} has another result than {GLOO}")
    return {"ways": ways}
