"""The demo's second part: gradients by int8 over q7x2 beside plain DDP over Gloo, on slow links.

Each rank is a virtual host with a link of its own, which needs root and iproute2. Both trainings
have the same seed, so the same batches and the same initial weights; int8 loses a little of each
gradient, and sends the rest of it with the next one.
"""

import argparse
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from report import read_log
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).parents[1]
CODEC = "int8"
TIMEOUT_S = 600.0
_NEAR = 1.001  # losses that differ by less are the same loss here


def why_not() -> str | None:
    """What is missing for virtual hosts; None: nothing."""
    sys.path.insert(0, str(ROOT))  # the lab is a part of the tests
    try:
        from tests.lab import namespaces
    except ImportError as error:
        return f"the folder tests is not here ({error})"
    return namespaces.unavailable()


def compare(args: argparse.Namespace, model: dict[str, Any]) -> dict[str, Any]:
    """Trains twice; returns the curves of both, and how much sooner int8 has Gloo's last loss."""
    from tests.lab import Lab, Topology

    runs = [("q7x2", f"q7x2, {CODEC}", ["--compress", CODEC]), ("gloo", "gloo", [])]
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Lab(Topology(hosts=args.ranks, rate=args.rate)) as lab,
        Progress(*columns, TimeElapsedColumn()) as progress,
    ):
        curves = []
        for backend, name, more in runs:
            log = args.out / f"slow-{backend}.jsonl"
            log.unlink(missing_ok=True)
            task = progress.add_task(f"{name} at {args.rate}", total=args.slow_steps)
            options = {
                **model,
                "backend": backend,
                "seed": args.seed,
                "steps": args.slow_steps,
                "metrics": log,
                "calibrate-every": args.slow_steps,  # it would measure the cores, not the links
                "validate-every": args.slow_steps,
            }
            command = [sys.executable, str(Path(__file__).with_name("train_lm.py"))]
            command += [f"--{key}={value}" for key, value in options.items()] + more

            def follow(log: Path = log, task: Any = task) -> None:
                progress.update(task, completed=len(_steps(log)))

            _follow(lambda command=command: lab.run(command, env=_ENV, timeout_s=TIMEOUT_S), follow)
            curves.append(_curve(name, log))
    return {"rate": args.rate, "codec": CODEC, "curves": curves, "sooner": _sooner(*curves)}


_ENV = {"OMP_NUM_THREADS": "1"}


def _follow(work: Callable[[], Any], follow: Callable[[], None]) -> None:
    """Calls `follow` now and then while `work` runs, and raises what it raised."""
    problem: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            problem.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
        follow()
    if problem:
        raise problem[0]


def _steps(log: Path) -> list[dict[str, float]]:
    return [record for record in read_log(log) if "loss" in record]


def _curve(name: str, log: Path) -> dict[str, Any]:
    steps, seconds = _steps(log), 0.0
    elapsed = [seconds := seconds + record["seconds"] for record in steps]
    return {
        "name": name,
        "seconds": elapsed,
        "loss": [record["loss"] for record in steps],
        "step": median(record["seconds"] for record in steps),
        "validation_loss": read_log(log)[-1]["validation_loss"],
    }


def _sooner(tested: dict[str, Any], reference: dict[str, Any]) -> float | None:
    """By the smoothed loss at the end of `reference`; None: `tested` does not get near it."""
    goal = _NEAR * _smooth(reference["loss"])[-1]
    for seconds, loss in zip(tested["seconds"], _smooth(tested["loss"]), strict=True):
        if loss <= goal:
            return float(reference["seconds"][-1] / seconds)
    return None


def _smooth(losses: list[float], window: int = 5) -> list[float]:
    return [
        sum(losses[max(0, i - window + 1) : i + 1]) / min(window, i + 1) for i in range(len(losses))
    ]


def say(console: Console, slow: dict[str, Any]) -> None:
    tested, reference = slow["curves"]
    faster = reference["step"] / tested["step"]
    console.print(
        f"[bold green]Over links of {slow['rate']}[/]: {1e3 * tested['step']:.0f} ms a step with "
        f"{tested['name']}, {1e3 * reference['step']:.0f} ms with {reference['name']}: "
        f"{faster:.1f} times faster. Validation loss after {len(tested['loss'])} steps: "
        f"{tested['validation_loss']:.4f} and {reference['validation_loss']:.4f}.",
        highlight=False,
    )
