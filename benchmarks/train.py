"""`python -m benchmarks train`: the same training with and without hooks, over slow networks.

A byte-level GPT learns the sources of Python's standard library on four virtual hosts, once for
each method and rate; all methods take the same batches from the same initial weights. Written are
the losses over steps and over seconds, bytes on the hosts' links, and step times beyond compute
alone. Finished cells are kept in the JSON file: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import facts, report
from benchmarks.lab import Lab, Topology
from benchmarks.launch import ROOT

# Label, backend, hook (see train_worker.add_hook).
METHODS = (
    ("DDP, Gloo", "gloo", "none"),
    ("PyTorch bf16, Gloo", "gloo", "torch bf16"),
    ("PyTorch fp16, Gloo", "gloo", "torch fp16"),
    ("PyTorch PowerSGD 4, Gloo", "gloo", "torch powersgd 4"),
    ("DDP, q7x2", "q7x2", "none"),
    ("bf16, q7x2", "q7x2", "bf16"),
    ("int8, q7x2", "q7x2", "codec int8"),
    ("int4, q7x2", "q7x2", "codec int4:g=128"),
    ("top 1 %, q7x2", "q7x2", "codec topk:0.01+int8"),
    ("PowerSGD 4, q7x2", "q7x2", "powersgd 4"),
    ("PowerSGD 4 alternating, q7x2", "q7x2", "alternating 4"),
    ("PowerSGD 4, Gloo", "gloo", "powersgd 4"),
)
BASELINE = METHODS[0][0]
_LOSS_WINDOW = 10  # steps over which the loss is averaged


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks train",
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rates", nargs="+", default=["20mbit", "100mbit", "1gbit"])
    parser.add_argument("--methods", nargs="+", metavar="LABEL", help="some of them; default: all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--start", type=int, default=10, help="steps in full precision at first")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4, help="windows a rank")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--bucket-mb", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=Path("bench-out/train"), help="a folder")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    args = parser.parse_args(argv)

    labels = [label for label, *_ in METHODS]
    if unknown := set(args.methods or ()) - set(labels):
        raise ValueError(f"no method is called {unknown}; they are {', '.join(labels)}")
    methods = [m for m in METHODS if args.methods is None or m[0] in args.methods]
    recipe = {
        "steps": args.steps,
        "start": args.start,
        "model": {
            "layers": args.layers,
            "heads": 4,
            "dim": args.dim,
            "context": args.context,
        },
        "batch": args.batch,
        "lr": args.lr,
        "warmup": 20,
        "bucket_mb": args.bucket_mb,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    cells = _measure(args, methods, recipe)
    _print(report.console(), cells)
    from benchmarks import train_plots

    train_plots.draw(args.out / "train.png", cells, BASELINE)


def _measure(
    args: argparse.Namespace, methods: list[tuple[str, str, str]], recipe: dict[str, Any]
) -> list[dict[str, Any]]:
    path = args.out / "train.json"
    cells: list[dict[str, Any]] = []
    if path.exists() and not args.fresh:
        kept = json.loads(path.read_text())
        if kept["recipe"] != recipe:
            raise ValueError(f"{path} is of another training; give --fresh, or another --out")
        cells = kept["cells"]
    done = {(c["rate"], c["label"], c["seed"]) for c in cells}
    wanted = [
        (rate, seed, method)
        for rate, seed, method in itertools.product(args.rates, range(args.seeds), methods)
        if (rate, method[0], seed) not in done
    ]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("training", total=len(wanted))
        for rate, cases in itertools.groupby(wanted, key=lambda each: each[0]):
            with Lab(Topology(hosts=4, rate=rate)) as lab:
                for _, seed, (label, backend, hook) in cases:
                    progress.update(task, description=f"{rate}: {label}")
                    spec = {**recipe, "backend": backend, "hook": hook, "seed": seed}
                    figures = _run(lab, spec)
                    cells.append({"rate": rate, "label": label, "seed": seed, **figures})
                    report.write_json(path, facts.collect(), {"recipe": recipe, "cells": cells})
                    progress.advance(task)
    return cells


def _run(lab: Lab, spec: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="q7x2-train-") as folder:
        result, spec_path = Path(folder) / "result.json", Path(folder) / "spec.json"
        spec_path.write_text(json.dumps({**spec, "result": str(result)}))
        paths = [str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
        lab.run(
            [sys.executable, "-m", "benchmarks.train_worker", str(spec_path)],
            env={"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            timeout_s=1800,
        )
        figures: dict[str, Any] = json.loads(result.read_text())
        return figures


def smooth(losses: list[float]) -> list[float]:
    """Each with the mean of the steps up to it, at most ten."""
    return [
        sum(losses[max(0, i + 1 - _LOSS_WINDOW) : i + 1])
        / len(losses[max(0, i + 1 - _LOSS_WINDOW) : i + 1])
        for i in range(len(losses))
    ]


def seconds_to(cell: dict[str, Any], loss: float) -> float | None:
    """When the smoothed loss was first that low; None where it never was."""
    for value, step in zip(smooth([s["loss"] for s in cell["steps"]]), cell["steps"], strict=True):
        if value <= loss:
            return float(step["elapsed"])
    return None


def _print(console: Console, cells: list[dict[str, Any]]) -> None:
    for rate in dict.fromkeys(c["rate"] for c in cells):
        table = Table(title=f"4 hosts x {rate}")
        for name in (
            "method",
            "seed",
            "step",
            "beyond compute",
            "bytes a step and host",
            "final loss",
            "to the baseline's final loss",
        ):
            table.add_column(name, justify="left" if name == "method" else "right")
        here = [c for c in cells if c["rate"] == rate]
        for cell in here:
            base = [c for c in here if c["label"] == BASELINE and c["seed"] == cell["seed"]]
            reached = seconds_to(cell, base[0]["final_loss"]) if base else None
            ratio = (
                f"{reached:.3g} s ({base[0]['steps'][-1]['elapsed'] / reached:.2f} x sooner)"
                if reached
                else "never"
            )
            table.add_row(
                cell["label"],
                str(cell["seed"]),
                report.duration(cell["step_seconds"]),
                report.duration(max(0.0, cell["beyond_compute_seconds"])),
                f"{cell['bytes_per_step'] / 1e3:.0f} kB",
                f"{cell['final_loss']:.4f}",
                ratio,
            )
        console.print(table)
