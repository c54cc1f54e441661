"""`python -m benchmarks policy`: what policies promise, measured (root).

Part "advise": on virtual hosts, the time of a step with the best proposal of `q7x2.advise` beside
the best of a sweep over all proposals. Part "divergence": on this host, trainings whose learning
rate rises 30 fold at int2, beside trainings at the tight level that nothing disturbs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import facts, launch, report
from benchmarks.harness.lab import Lab, Topology
from benchmarks.harness.processes import run_ranks

RESULTS = Path(__file__).parents[2] / "results"
PARTS = ("advise", "divergence")
GOAL = 1.10  # the time of the best proposal, relative to the best of the sweep


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks policy", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit"], help="as tc spells it")
    parser.add_argument("--width", type=int, default=1024, help="of the layers, part advise")
    parser.add_argument("--rounds", type=int, default=15, help="of the sweep, part advise")
    parser.add_argument("--steps", type=int, default=600, help="of a training, part divergence")
    parser.add_argument("--seeds", type=int, default=5, help="part divergence")
    parser.add_argument("--out", type=Path, default=RESULTS / "policy.json")
    args = parser.parse_args(argv)
    console = report.console()
    machine = facts.collect()
    earlier = json.loads(args.out.read_text()) if args.out.exists() else {}
    body = {part: earlier[part] for part in PARTS if part in earlier}

    def keep(part: str, result: dict[str, Any]) -> None:
        body[part] = {"commit": machine["commit"], **result}
        report.write_json(args.out, machine, body)

    if "advise" in args.parts:
        spec = {"part": "advise", "width": args.width, "rounds": args.rounds}
        networks = {}
        for rate in args.rates:
            networks[rate] = _in_lab(spec, args.hosts, rate)
            console.print(advise_sentence(rate, networks[rate]), markup=False)
        keep("advise", {"hosts": args.hosts, "networks": networks})
    if "divergence" in args.parts:
        spec = {"part": "divergence", "steps": args.steps, "seeds": args.seeds}
        result = _on_this_host(spec, ranks=2)
        console.print(divergence_sentence(result), markup=False)
        keep("divergence", {"steps": args.steps, **result})


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


def _in_lab(spec: dict[str, Any], hosts: int, rate: str) -> dict[str, Any]:
    with Lab(Topology(hosts=hosts, rate=rate)) as lab, tempfile.TemporaryDirectory() as folder:
        command, out, env = _worker(spec, Path(folder))
        lab.run(command, env={**env, "XDG_CACHE_HOME": folder}, timeout_s=3600)
        result: dict[str, Any] = json.loads(out.read_text())
        return result


def _on_this_host(spec: dict[str, Any], ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command, out, env = _worker(spec, Path(folder))
        run_ranks([command] * ranks, launch.separate_environments(ranks, env), 3600)
        result: dict[str, Any] = json.loads(out.read_text())
        return result


def _worker(spec: dict[str, Any], folder: Path) -> tuple[list[str], Path, dict[str, str]]:
    out = folder / "result.json"
    command = [sys.executable, "-m", "benchmarks.studies.policy.worker", json.dumps(spec), str(out)]
    path = launch.python_path(launch.ROOT / "examples")
    return command, out, {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
