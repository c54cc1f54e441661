"""Train the same model over two backends, and compare losses and times.

    python examples/demo.py --backends q7x2 gloo --out demo-out

Then, as root, the same model with int8 gradients over slow virtual links (`demo_slow_link.py`).

Both runs have the same seed, so the same batches and the same initial weights. They take turns
(ABBA: each is stopped and resumed), so that a machine that speeds up or slows down favours neither.
Writes the logs, `demo.json` and `demo.png`. Exits with 1 if the losses differ by more than the
order of fp32 additions explains.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import demo_slow_link
import picture
import torch
from report import read_log
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# Small enough that four ranks on two cores do 150 steps in a minute.
MODEL = {"layers": 4, "heads": 6, "dim": 192, "context": 128, "batch": 2, "warmup": 20}

# Relative, at any step. If only the bucket size changes, and with it the order of additions, Gloo
# differs from itself by 1e-7 and 4e-6. The norm is there because Adam hides a gradient of the wrong
# scale from the loss.
TOLERANCE = {"loss": 1e-5, "gradient_norm": 1e-4}

SILENCE = 120.0  # seconds without a step after which a run is stopped


class RunFailed(Exception):
    pass


def train(
    backend: str, args: argparse.Namespace, scratch: Path, until: int, follow: Callable[[], int]
) -> None:
    """One turn of one backend, resumed where the turn before ended; `follow` returns steps done."""
    options = {
        **MODEL,
        "backend": backend,
        "seed": args.seed,
        "steps": args.steps,
        "until": until,
        "metrics": args.out / f"{backend}.jsonl",
        "checkpoint-dir": scratch / backend,
        "checkpoint-every": args.steps,
        "validate-every": args.steps,
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={args.ranks}", str(Path(__file__).with_name("train_lm.py"))]
    command += [f"--{name}={value}" for name, value in options.items()]
    first = follow()
    command += ["--resume"] if first else []

    output = scratch / f"{backend}.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
    try:
        done, changed = first, time.monotonic()
        while process.poll() is None:
            time.sleep(0.1)
            if (now_done := follow()) != done:
                done, changed = now_done, time.monotonic()
            if time.monotonic() - changed > SILENCE:
                raise RunFailed(f"{backend}: no step for {SILENCE:.0f} s after step {done}")
    finally:
        if process.poll() is None:
            process.terminate()  # torchrun ends its ranks
            process.wait(60)
    complete, (tested, _) = follow() == until, args.backends
    if not complete or (process.returncode and backend == tested):
        raise RunFailed(f"{backend} ended at step {follow()} of {until}:\n{output.read_text()}")
    if process.returncode:  # torch 2.13's Gloo aborts now and then while it is torn down
        print(f"{backend} was done, but did not end in order: exit status {process.returncode}")


def take_turns(args: argparse.Namespace) -> None:
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
    )
    with tempfile.TemporaryDirectory() as scratch, Progress(*columns) as progress:
        tasks = {name: progress.add_task(name, total=args.steps, text="") for name in args.backends}

        def follower(backend: str) -> Callable[[], int]:
            def follow() -> int:
                steps = [r for r in read_log(args.out / f"{backend}.jsonl") if "loss" in r]
                if not steps:
                    return 0
                text, done = f"loss {steps[-1]['loss']:.3f}", int(steps[-1]["step"])
                progress.update(tasks[backend], completed=done, text=text)
                return done

            return follow

        for turn in range(args.turns):
            until = args.steps * (turn + 1) // args.turns
            for backend in args.backends[:: -1 if turn % 2 else 1]:
                progress.update(tasks[backend], text=f"starting {args.ranks} ranks")
                train(backend, args, Path(scratch), until, follower(backend))


def summary(backend: str, log: list[dict[str, float]]) -> dict[str, Any]:
    steps = [record for record in log if "loss" in record]
    column = {name: [record[name] for record in steps] for name in steps[0]}
    return {
        "name": backend,
        "seconds": median(column["seconds"]),
        "seconds_quartiles": quantiles(column["seconds"], n=4)[::2],
        "communication": median(column["communication_seconds"]),
        "cpu_seconds": median(column["cpu_seconds"]),
        "tokens_per_second": median(column["tokens_per_second"]),
        "validation_loss": log[-1]["validation_loss"],
        **{name: column[name] for name in ("step", "loss", "gradient_norm")},
        "step_seconds": column["seconds"],
        "step_communication": column["communication_seconds"],
    }


def largest_difference(a: list[float], b: list[float]) -> float:
    """Relative to `b`. Infinite if a value is not finite, which compares as equal to nothing."""
    differences = [abs(x - y) / abs(y) for x, y in zip(a, b, strict=True)]
    return max(d if d == d else float("inf") for d in differences)


def table(result: dict[str, Any]) -> Table:
    tested, reference = result["backends"]
    grid = Table(caption=result["caption"], caption_justify="left")
    for name in ("", tested["name"], reference["name"], "difference or ratio"):
        grid.add_column(name, justify="right" if name else "left")

    def losses(name: str, a: float, b: float) -> None:
        grid.add_row(name, f"{a:.6f}", f"{b:.6f}", f"{(a - b) / b:+.0e}")

    def times(name: str, key: str, form: str, scale: float = 1.0) -> None:
        a, b = (scale * backend[key] for backend in (tested, reference))
        grid.add_row(name, format(a, form), format(b, form), f"{a / b:.2f} x")

    steps = len(tested["step"])
    for step in sorted({1, *(max(1, steps * quarter // 4) for quarter in (1, 2, 3, 4))}):
        losses(f"loss, step {step}", tested["loss"][step - 1], reference["loss"][step - 1])
    losses("validation loss", tested["validation_loss"], reference["validation_loss"])
    grid.add_section()
    times("step, ms", "seconds", ".0f", 1e3)
    times("communication beyond compute, ms", "communication", ".0f", 1e3)
    times("CPU time of all ranks a step, ms", "cpu_seconds", ".0f", 1e3)
    times("tokens per second", "tokens_per_second", ",.0f")
    return grid


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--backends", nargs=2, default=["q7x2", "gloo"], help="tested, reference")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150, help="of each backend")
    parser.add_argument("--turns", type=int, default=2, help="of each backend")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    slow = parser.add_argument_group("over slow virtual links (root)")
    slow.add_argument("--rate", default="100mbit", help="of each host's link")
    slow.add_argument("--slow-steps", type=int, default=30, help="of each; 0: leave it out")
    args = parser.parse_args()
    if args.backends[0] == args.backends[1]:
        parser.error("--backends: expected two different ones")
    if not 1 <= args.turns <= args.steps or args.steps < 2:
        parser.error("--steps: expected at least two, and one a turn")
    args.out.mkdir(parents=True, exist_ok=True)
    for backend in args.backends:
        (args.out / f"{backend}.jsonl").unlink(missing_ok=True)

    console = Console()
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    start = time.monotonic()
    try:
        take_turns(args)
    except RunFailed as error:
        console.print(f"[bold red]failed[/]: {error}", highlight=False)
        return 1

    tested, reference = (
        summary(name, read_log(args.out / f"{name}.jsonl")) for name in args.backends
    )
    differences = {k: largest_difference(tested[k], reference[k]) for k in TOLERANCE}
    result = {
        "caption": f"{args.ranks} ranks on {cores} cores, GPT with {MODEL['layers']} layers of "
        f"{MODEL['dim']}, {MODEL['batch']} x {MODEL['context']} bytes a rank and step; "
        "communication: step time beyond compute alone",
        "differences": differences,
        "tolerance": TOLERANCE,
        "backends": [tested, reference],
        "model": MODEL,
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "machine": {"cores": cores, "load_before": load, "processor": platform.processor()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    console.print(table(result))
    if load > cores / 2:
        console.print(f"[yellow]The machine was busy before (load {load:.1f}): mind the times.")

    equal = all(differences[name] <= TOLERANCE[name] for name in TOLERANCE)
    found = ", ".join(
        f"{name.replace('_', ' ')} {differences[name]:.0e} (tolerance {TOLERANCE[name]:.0e})"
        for name in TOLERANCE
    )
    verdict = "[bold green]The same training[/]" if equal else "[bold red]Not the same training[/]"
    console.print(f"{verdict}: largest relative difference in {found}.", highlight=False)
    if args.slow_steps:
        if problem := demo_slow_link.why_not():
            console.print(f"[yellow]Without the part over slow links: {problem}", highlight=False)
        else:
            result["slow_link"] = demo_slow_link.compare(args, MODEL)
            demo_slow_link.say(console, result["slow_link"])
    result["wall_seconds"] = time.monotonic() - start
    (args.out / "demo.json").write_text(json.dumps(result, indent=1) + "\n")
    picture.draw(result, args.out / "demo.png")
    console.print(f"Picture and figures: {args.out / 'demo.png'}, {args.out / 'demo.json'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
