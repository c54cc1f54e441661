"""How often is `q7x2 experiment` right? Real trainings, with a known difference or with none.

An experiment trains a small network on two ranks with both values of a setting, in turns, once per
seed. `same`: the second value does what the first does, so each verdict but "undecided" is false.
`slower`: with the second value each step takes a fifth longer, so each verdict but "worse" is
false.

A run that was stopped goes on with the experiment after the last one in the results.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, facts, report
from tests.diagnoses.prefork import Nursery

RANKS = 2
RIGHT = {"same": "undecided", "slower": "worse"}
FEWEST = {"same": 19, "slower": 20}  # right verdicts, of 20
SLOWER = 1.2


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.diagnoses verdicts", description=__doc__)
    parser.add_argument("--trials", type=int, default=20, help="experiments of each kind")
    parser.add_argument("--seeds", type=int, default=22, help="of an experiment, at least 6")
    parser.add_argument("--steps", type=int, default=500, help="of a training")
    parser.add_argument("--out", type=Path, default=RESULTS / "verdicts.json")
    args = parser.parse_args(argv)
    machine = facts.collect()
    spec = {"seeds": args.seeds, "steps": args.steps}
    found = so_far(args.out, spec)
    with Nursery(RANKS, {"OMP_NUM_THREADS": "1"}) as nursery:
        for trial in range(args.trials):
            seeds = list(range(trial * args.seeds, (trial + 1) * args.seeds))
            for kind, verdicts in found.items():
                if len(verdicts) > trial:  # of an earlier run
                    continue
                verdicts.append(run(kind, seeds, args.steps, nursery.launcher))
                rows = [row(kind, verdicts) for kind, verdicts in found.items()]
                report.write_json(args.out, machine, {**spec, "rows": rows})
                right = ", ".join(f"{each['kind']} {each['right']}" for each in rows)
                print(
                    f"experiment {trial + 1} of {args.trials} ({kind}); right: {right}", flush=True
                )
    for kind, fewest in FEWEST.items():
        print(f"goal of {kind}: {fewest} of 20")


def so_far(out: Path, spec: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The verdicts of an earlier run that was stopped, by kind."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in RIGHT}
    if out.exists():
        earlier = json.loads(out.read_text())
        if all(earlier.get(name) == value for name, value in spec.items()):
            found |= {each["kind"]: each["verdicts"] for each in earlier["rows"]}
    return found


def row(kind: str, verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """How many verdicts were right."""
    right = sum(each["verdict"] == RIGHT[kind] for each in verdicts)
    return {"kind": kind, "experiments": len(verdicts), "right": right, "verdicts": verdicts}


def run(kind: str, seeds: list[int], steps: int, launcher: list[str]) -> dict[str, Any]:
    """One experiment, and its verdict as plain values."""
    from q7x2 import cli

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.toml"
        file.write_text(
            f"""
            version = 1
            name = "{kind}"
            launcher = {json.dumps(launcher)}
            command = ["{__file__}", "--steps", "{steps}"]
            ranks = {RANKS}
            seeds = {seeds}
            [variable]
            argument = "--value"
            baseline = "first"
            variants = ["{kind}"]
            """
        )
        if cli.main(["experiment", "run", str(file)]) != 0:
            raise RuntimeError(f"the experiment '{kind}' has failed")
        verdict: dict[str, Any]
        (verdict,) = json.loads((file.with_suffix("") / "verdicts.json").read_text())
    return verdict


def worker(argv: list[str]) -> None:
    """One rank of a training."""
    import q7x2
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--value")
    parser.add_argument("--steps", type=int)
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    dist.init_process_group("q7x2")
    model = DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    factor = SLOWER if args.value == "slower" else 1.0
    for _ in range(args.steps):
        begin = time.perf_counter()
        loss = model(torch.randn(64, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end = begin + factor * (time.perf_counter() - begin)
        while time.perf_counter() < end:
            pass
        q7x2.log_step(loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    worker(sys.argv[1:])
