"""What policies promise, measured.

Part "advise": on virtual hosts (root), the time of a step with the best proposal of `q7x2.advise`
beside the best of a sweep over all proposals. Part "divergence": on this host, trainings whose
learning rate rises 30 fold at int2, beside trainings at the tight level that nothing disturbs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Mapping
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import facts, ranks, report, timing
from benchmarks.harness.arguments import chosen, option
from benchmarks.studies.train.study import RECIPES
from benchmarks.studies.train.tasks import TASKS
from tests.lab import Topology

GOAL = 1.10  # the time of the best proposal, relative to the best of the sweep
_LAYERS = 4
_BATCH = 32
_EVERY = 50  # steps between two validations of the part "divergence"
_LEVELS = ("int2:g=128", "int8")

OPTIONS = {
    "hosts": 4,
    "rates": option(["100mbit", "1gbit"], "as tc spells it"),
    "width": option(1024, "of the layers, part advise"),
    "rounds": option(15, "of the sweep, part advise"),
    "steps": option(600, "of a training, part divergence"),
    "seeds": option(5, "part divergence"),
}


def measure_advice(args: argparse.Namespace) -> dict[str, Any]:
    spec = {"part": "advise", **chosen(args, "width", "rounds")}
    networks = {
        rate: ranks.run(__name__, spec, topology=Topology(hosts=args.hosts, rate=rate))
        for rate in args.rates
    }
    return {"commit": facts.collect()["commit"], "hosts": args.hosts, "networks": networks}


def measure_divergence(args: argparse.Namespace) -> dict[str, Any]:
    spec = {"part": "divergence", **chosen(args, "steps", "seeds")}
    found = ranks.run(__name__, spec, 2, apart=True)
    return {"commit": facts.collect()["commit"], "steps": args.steps, **found}


PARTS = {"advise": measure_advice, "divergence": measure_divergence}


def lines(body: Mapping[str, Any]) -> list[str]:
    networks = body["advise"]["networks"] if "advise" in body else {}
    found = [advise_sentence(rate, network) for rate, network in networks.items()]
    return found + ([divergence_sentence(body["divergence"])] if "divergence" in body else [])


def advise_sentence(rate: str, result: dict[str, Any]) -> str:
    """The bar of one network: the measured time of the best proposal and of the best of all."""
    best = min(result["sweep"], key=lambda cell: cell["measured"])
    chosen = result["sweep"][result["best"]]
    ratio = chosen["measured"] / best["measured"]
    verdict = "met" if ratio <= GOAL else "missed"
    return (
        f"{rate}: {chosen['hook']}, {chosen['bucket_mb']:g} MB: advised "
        f"{report.duration(chosen['advised'])}, measured {report.duration(chosen['measured'])}; "
        f"best of the sweep {best['hook']}, {best['bucket_mb']:g} MB: "
        f"{report.duration(best['measured'])}; {ratio:.2f} x, {verdict}"
    )


def divergence_sentence(result: dict[str, Any]) -> str:
    """Validations until each divergence was noticed, and the difference of the final losses."""
    differences = [
        forced["loss"] - tight["loss"]
        for forced, tight in zip(result["forced"], result["tight"], strict=True)
    ]
    noise = statistics.stdev([tight["loss"] for tight in result["tight"]]) if differences[1:] else 0
    late = [forced["validations"] for forced in result["forced"]]
    return (
        f"learning rate x 30 at int2: noticed after {late} validations; final loss "
        f"{statistics.mean(differences):+.4f} beside the tight level (standard deviation of its "
        f"seeds {noise:.4f})"
    )


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of a part."""
    dist.init_process_group("q7x2")
    return {"advise": advise, "divergence": divergence}[spec["part"]](spec)


def advise(spec: dict[str, Any]) -> dict[str, Any]:
    """All proposals with their times as advised, and the median times of real steps."""
    width = spec["width"]
    torch.manual_seed(0)
    layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(width, width), nn.Tanh())]
    model = nn.Sequential(*layers)
    x = torch.randn(_BATCH, width)

    def backward(of: nn.Module) -> None:
        of(x).square().mean().backward()

    advice = q7x2.advise(model, backward)
    cells = []
    trained = []
    for proposal in advice.proposals:
        ddp = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=proposal.bucket_cap_mb)
        q7x2.attach(ddp, proposal.hook)
        trained.append(ddp)
        cells.append(
            {
                "hook": proposal.hook_text,
                "bucket_mb": proposal.bucket_cap_mb,
                "advised": proposal.step_seconds,
                "tried": proposal.is_measured,
                "accumulate": proposal.accumulate,
                "seconds": [],
            }
        )
    for round_ in range(spec["rounds"] + 2):  # DDP lays its buckets out anew after the first step
        for ddp, cell in zip(trained, cells, strict=True):
            ddp.zero_grad(set_to_none=True)
            dist.barrier()
            took = timing.timed(lambda ddp=ddp: backward(ddp))  # type: ignore[misc]
            (slowest,) = timing.largest([took])
            if round_ >= 2:
                cell["seconds"].append(slowest)
    for cell in cells:
        cell["measured"] = statistics.median(cell["seconds"])
    return {
        "compute_seconds": advice.compute_seconds,
        "gradient_bytes": advice.gradient_bytes,
        "compression_pays": advice.compression_pays,
        "best": list(advice.proposals).index(advice.best),
        "sweep": cells,
    }


def divergence(spec: dict[str, Any]) -> dict[str, Any]:
    """Per seed, a training that is disturbed at int2, and one at the tight level that is not."""
    return {
        "levels": _LEVELS,
        "forced": [_train(spec["steps"], seed, is_forced=True) for seed in range(spec["seeds"])],
        "tight": [_train(spec["steps"], seed, is_forced=False) for seed in range(spec["seeds"])],
    }


def _train(steps: int, seed: int, is_forced: bool) -> dict[str, Any]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    task = TASKS["digits"]({**RECIPES["accuracy"]["digits"], "steps": steps})
    torch.manual_seed(seed)
    ddp = DistributedDataParallel(task.model(), bucket_cap_mb=0.1)
    policy = q7x2.policy.ErrorBudget(_LEVELS, start=0 if is_forced else 1)
    hook = q7x2.attach(ddp, q7x2.Quantize("int8"), policy=policy)
    optimizer = task.optimizer(ddp.parameters())
    hook.guard(model=ddp, optimizer=optimizer)
    batches = task.batches(rank, world_size, seed)
    held_out = task.held_out(rank, world_size)
    kick = steps // 2 + _EVERY // 4
    validations = 0
    noticed = None

    def validate() -> float:
        with torch.no_grad():
            return float(task.loss(ddp.module, held_out))

    hook.observe(validate())
    is_kicked = not is_forced
    while hook.steps < steps:  # steps that were rolled back are made again
        if not is_kicked and hook.steps == kick:
            is_kicked = True
            for group in optimizer.param_groups:
                group["lr"] *= 30
        task.loss(ddp, next(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if hook.steps % _EVERY == 0:
            validations += is_forced and hook.steps > kick
            rolled_back = hook.observe(validate()).rolled_back
            if rolled_back and noticed is None:
                noticed = validations
    final = torch.tensor([validate()], dtype=torch.float64)
    dist.all_reduce(final)
    return {
        "loss": final.item() / world_size,
        "validations": noticed,
        "level": str(policy.level),
        "history": [[e.step, e.kind, e.parameter, e.value, e.level] for e in policy.history],
    }
