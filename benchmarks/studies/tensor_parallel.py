"""What overlap saves: steps of an MLP in tensor parallelism, with it and without, in turns.

Virtual hosts with one rank each share the layers of an MLP and the rows of its input (sequence
parallelism). A step is a forward and a backward. The ways take turns in the same processes:
q7x2.ColwiseOverlap and q7x2.RowwiseOverlap, and PyTorch's ColwiseParallel and RowwiseParallel over
q7x2 and over Gloo. It needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import arguments, facts, launch, report
from benchmarks.harness.lab import Lab, Topology

RESULTS = Path(__file__).parents[1] / "results"
OURS, PLAIN, GLOO = "overlap, q7x2", "no overlap, q7x2", "no overlap, gloo"
WAYS = (OURS, PLAIN, GLOO)
GOAL = 1.2  # times as fast as `PLAIN`


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks tensor_parallel", description=__doc__
    )
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
    parser.add_argument("--out", type=Path, default=RESULTS / "tensor_parallel.json")
    args = parser.parse_args(argv)
    sizes = [int(each) for each in arguments.names(args.ranks)]
    names = ("batch", "sequence", "width", "hidden", "layers", "dtype", "chunks", "rounds")
    spec = {name: getattr(args, name) for name in names}
    cases = [measure(ranks, rate, spec) for rate in arguments.names(args.rates) for ranks in sizes]
    machine = facts.collect()
    report.write_json(args.out, machine, {**spec, "goal": GOAL, "cases": cases})
    console = report.console()
    report.print_facts(console, machine)
    for case in cases:
        console.print(sentence(case), markup=False)


def measure(ranks: int, rate: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The figures of one number of ranks."""
    with Lab(Topology(hosts=ranks, rate=rate)) as lab, tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "case.json"
        worker = [
            sys.executable,
            "-m",
            "benchmarks.studies.tensor_parallel",
            json.dumps(spec),
            str(out),
        ]
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": launch.python_path()}
        env |= {"XDG_CACHE_HOME": folder, "Q7X2_REFINE": "0"}  # too few calls to refine a choice
        lab.run(worker, env=env, timeout_s=3600)
        case: dict[str, Any] = {"rate": rate, **json.loads(out.read_text())}
        return case


def sentence(case: dict[str, Any]) -> str:
    """A case for a person: the times of all ways, and what the goal is."""
    ways = case["ways"]
    ratio = ways[PLAIN]["seconds"] / ways[OURS]["seconds"]
    prediction = ""
    if "predicted_forward" in case:
        predicted, measured = case["predicted_forward"], case["measured_forward"]
        prediction = (
            f"; their forwards predicted as {report.duration(predicted)}, measured "
            f"{report.duration(measured)} ({predicted / measured - 1:+.0%})"
        )
    return (
        f"{case['ranks']} ranks at {case['rate']}: {report.ways(ways, WAYS)}; {ratio:.2f} x as "
        f"fast as {PLAIN}, goal {GOAL:.2f} x; chunks {case['chunks']}, {case['waited']:.0%} of the "
        f"layers' time waited for messages{prediction}"
    )


# ---- one rank -----------------------------------------------------------------------------------


def rank_main(spec: dict[str, Any], out: Path) -> None:
    """Rank 0 writes the figures to ``out``."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    torch.set_num_threads(1)
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
    if rank == 0:
        out.write_text(json.dumps(case))
    dist.barrier()
    dist.destroy_process_group()


def made(spec: dict[str, Any], mesh: Any, overlap: bool) -> Any:
    """The MLP over the ranks of ``mesh``; the same weights in all ways."""
    import q7x2
    import torch
    from torch import nn
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    width, hidden = spec["width"], spec["hidden"]
    layers: list[nn.Module] = []
    plan: dict[str, Any] = {}
    for index in range(spec["layers"]):
        layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)]
        up, down = str(3 * index), str(3 * index + 2)
        if overlap:
            plan[up] = q7x2.ColwiseOverlap(chunks=spec["chunks"])
            plan[down] = q7x2.RowwiseOverlap(chunks=spec["chunks"])
        else:
            plan[up] = ColwiseParallel(input_layouts=Shard(1))
            plan[down] = RowwiseParallel(output_layouts=Shard(1))
    model = nn.Sequential(*layers).to(getattr(torch, spec["dtype"]))
    return parallelize_module(model, mesh, plan)


def compare(models: dict[str, Any], x: Any, rounds: int) -> dict[str, Any]:
    """Medians over the rounds; the time of a step is that of the slowest rank."""
    import torch
    import torch.distributed as dist

    from benchmarks.harness.schedule import bytes_sent

    figures: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    results: dict[str, Any] = {}
    for turn in range(rounds + 1):  # the first one is not counted
        for name in WAYS[turn % len(WAYS) :] + WAYS[: turn % len(WAYS)]:
            given = x.clone().requires_grad_()
            models[name].zero_grad()
            dist.barrier()
            sent, cpu, begin = bytes_sent(), time.process_time(), time.perf_counter()
            y = models[name](given)
            y.backward(y.detach())
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
            dist.barrier()
            results[name] = y.detach(), given.grad
            slowest = torch.tensor([seconds, float(bytes_sent() - sent)], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            total = torch.tensor([cpu], dtype=torch.float64)
            dist.all_reduce(total)
            figures[name].append([*slowest.tolist(), *total.tolist()])
    for name in WAYS:
        for mine, other in zip(results[name], results[GLOO], strict=True):
            if (mine - other).norm() > 0.02 * other.norm():
                raise ValueError(f"{name} has another result than {GLOO}")
    ways = {}
    for name, rows in figures.items():
        medians = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
        ways[name] = dict(zip(("seconds", "bytes_sent", "cpu_seconds"), medians, strict=True))
        ways[name]["all_seconds"] = [row[0] for row in rows[1:]]
    return {"ways": ways}


if __name__ == "__main__":
    rank_main(json.loads(sys.argv[1]), Path(sys.argv[2]))
