"""Runs an experiment: variants and baseline in turns, one run after the other, with resumption.

For each seed the baseline and all variants run once, in an order that is drawn from the seed, so
that a slow phase of the machine meets all of them. Each run has a directory with its output and its
ledger. A line of ``results.jsonl`` is written when a run has succeeded; what has a line is not run
again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from q7x2 import _causes, _ledger_read
from q7x2._experiment_file import Experiment
from q7x2._sign_test import interval

_TAIL = 2000  # characters of a failed run's output


class ExperimentError(Exception):
    """A run failed, or the directory belongs to another experiment."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One variant beside the baseline.

    Attributes:
        baseline: The median of the baseline's metric.
        value: The median of the variant's metric.
        change: The median of the paired relative differences; 0.1: the variant's metric is 10 %
            larger.
        low, high: The interval of that median.
        verdict: ``"better"``, ``"worse"`` or ``"undecided"``.
    """

    variant: str
    baseline: float
    value: float
    change: float
    low: float
    high: float
    verdict: str


def run(
    experiment: Experiment, directory: pathlib.Path, say: Callable[[str], None]
) -> list[Verdict]:
    """Run what is missing, and judge. ``say`` is told how far it is.

    Raises:
        ExperimentError: A run failed. What has succeeded is kept.
        OSError: The directory cannot be written to.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _claim(experiment, directory)
    results = directory / "results.jsonl"
    values = _known(results)
    cases = [(seed, value) for seed in experiment.seeds for value in _order(experiment, seed)]
    for number, (seed, value) in enumerate(cases, 1):
        if (seed, value) in values:
            continue
        say(f"run {number} of {len(cases)}: {experiment.variable.name}={value}, seed {seed}")
        metric = _run(experiment, seed, value, _folder(experiment, directory, seed, value))
        with results.open("a") as file:
            file.write(json.dumps({"seed": seed, "value": value, "metric": metric}) + "\n")
        values[seed, value] = metric
    verdicts = [_judge(experiment, values, variant) for variant in experiment.variable.variants]
    text = json.dumps([dataclasses.asdict(each) for each in verdicts], indent=2)
    (directory / "verdicts.json").write_text(text + "\n")
    return verdicts


def _claim(experiment: Experiment, directory: pathlib.Path) -> None:
    """The first run writes what the experiment is and where it runs; later ones compare."""
    path = directory / "experiment.json"
    if path.exists():
        known = json.loads(path.read_text())
        if known["experiment"]["digest"] != experiment.digest:
            raise ExperimentError(
                f"{directory} has results of another version of the file; choose another directory"
            )
        now = _facts()
        different = [key for key, value in known["facts"].items() if now.get(key) != value]
        if different:
            raise ExperimentError(
                f"{directory} has results that were measured elsewhere or with other versions "
                f"({', '.join(different)} differ); choose another directory"
            )
        return
    facts = {"experiment": dataclasses.asdict(experiment), "facts": _facts()}
    path.write_text(json.dumps(facts, indent=2) + "\n")


def _facts() -> dict[str, Any]:
    from q7x2._ledger import machine_facts

    facts = machine_facts()
    for changing in ("pid", "boot_id", "begun_wall_ns", "accelerator"):
        del facts[changing]
    return {**facts, "commit": _commit()}


def _commit() -> str | None:
    """Of the current directory, with a + if tracked files differ; None outside a checkout."""
    try:
        answers = [
            subprocess.run(["git", *words], capture_output=True, text=True)
            for words in (
                ("rev-parse", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no"),
            )
        ]
    except FileNotFoundError:
        return None
    if answers[0].returncode != 0:
        return None
    return answers[0].stdout.strip() + ("+" if answers[1].stdout.strip() else "")


def _known(path: pathlib.Path) -> dict[tuple[int, str], float]:
    if not path.exists():
        return {}
    known = {}
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the last one, of a run that was killed
            row = json.loads(line)
            known[row["seed"], row["value"]] = row["metric"]
    return known


def _order(experiment: Experiment, seed: int) -> list[str]:
    values = [experiment.variable.baseline, *experiment.variable.variants]
    return random.Random(seed).sample(values, len(values))


def _folder(experiment: Experiment, directory: pathlib.Path, seed: int, value: str) -> pathlib.Path:
    values = (experiment.variable.baseline, *experiment.variable.variants)
    return directory / "runs" / f"seed{seed}-value{values.index(value)}"


def _run(experiment: Experiment, seed: int, value: str, folder: pathlib.Path) -> float:
    """One run; returns its metric."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    variable = experiment.variable
    environment = {**os.environ, **experiment.environment, "Q7X2_LEDGER": str(folder / "ledger")}
    command = [*experiment.command, experiment.seed_argument, str(seed)]
    if variable.is_environment:
        environment[variable.name] = value
    else:
        command += [variable.name, value]
    torchrun = ["-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", str(experiment.ranks)]
    launcher = [*experiment.launcher, sys.executable] if experiment.launcher else None
    output = folder / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*(launcher or [sys.executable, *torchrun]), *command],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(experiment.timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise _failed(output, f"took longer than {experiment.timeout:g} s") from None
            raise
    if status != 0:
        raise _failed(output, f"ended with status {status}")
    return _metric(experiment.metric, folder)


def _failed(output: pathlib.Path, what: str) -> ExperimentError:
    tail = output.read_text(errors="replace")[-_TAIL:]
    return ExperimentError(f"the run of {output} {what}:\n{tail}")


def _metric(name: str, folder: pathlib.Path) -> float:
    if name.startswith("printed:"):
        output = folder / "output.txt"
        pattern = rf"^{re.escape(name.removeprefix('printed:'))}=(\S+)$"
        found = re.findall(pattern, output.read_text(errors="replace"), re.M)
        try:
            return float(found[-1])
        except (IndexError, ValueError):
            raise _failed(output, f"printed no number as {name.removeprefix('printed:')}") from None
    try:
        analysis = _causes.analyse(_ledger_read.read(folder / "ledger"))
    except _ledger_read.LedgerError as error:
        raise _failed(folder / "output.txt", f"left no ledger: {error}") from error
    if name == "step_seconds":
        if analysis.boundaries.origin == "none":
            raise _failed(folder / "output.txt", "has no steps; q7x2.log_step says where they end")
        return statistics.median(step.seconds for step in analysis.steps)
    losses = [loss for loss in analysis.boundaries.losses if loss is not None]
    if not losses:
        raise _failed(folder / "output.txt", "has no loss; q7x2.log_step(loss) writes it")
    return losses[-1]


def _judge(experiment: Experiment, values: dict[tuple[int, str], float], variant: str) -> Verdict:
    before = [values[seed, experiment.variable.baseline] for seed in experiment.seeds]
    after = [values[seed, variant] for seed in experiment.seeds]
    if min(before) <= 0:
        raise ExperimentError(
            f"expected a positive {experiment.metric} of the baseline, got {min(before):g}"
        )
    changes = [b / a - 1 for a, b in zip(before, after, strict=True)]
    low, high = interval(changes, experiment.confidence)
    return Verdict(
        variant=variant,
        baseline=statistics.median(before),
        value=statistics.median(after),
        change=statistics.median(changes),
        low=low,
        high=high,
        verdict=verdict_of(low, high, experiment.margin, experiment.is_larger_better),
    )


def verdict_of(low: float, high: float, margin: float, is_larger_better: bool) -> str:
    """What an interval of relative changes says."""
    if low > margin:
        return "better" if is_larger_better else "worse"
    if high < -margin:
        return "worse" if is_larger_better else "better"
    return "undecided"


def lines(experiment: Experiment, verdicts: Sequence[Verdict]) -> list[str]:
    """The report, without an end of line."""
    variable = experiment.variable
    found = [
        f"{experiment.name}: {experiment.metric}, {variable.name}={variable.baseline} against "
        f"others, {len(experiment.seeds)} pairs"
    ]
    for each in verdicts:
        found.append(
            f"{each.variant}: {each.verdict}; {each.value:.6g} against {each.baseline:.6g}, "
            f"{100 * each.change:+.2f} % ({100 * each.low:+.2f} to {100 * each.high:+.2f} at "
            f"{100 * experiment.confidence:.4g} %)"
        )
    return found
