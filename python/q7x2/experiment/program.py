"""Runs the program of an experiment once, and finds its metric."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

from q7x2.experiment.file import Program, Variable
from q7x2.ledger import causes as ledger_causes
from q7x2.ledger import reader as ledger_reader

_TAIL = 2000  # characters of a failed run's output


class ExperimentError(Exception):
    """A run failed, or the directory belongs to another experiment."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What one run gets beside the program itself: its launcher, environment and arguments."""

    launcher: tuple[str, ...]
    environment: Mapping[str, str]
    arguments: tuple[str, ...] = ()

    def having(self, variables: Sequence[Variable], values: Sequence[str]) -> Case:
        """This case with values for variables under test."""
        environment, arguments = dict(self.environment), list(self.arguments)
        for variable, value in zip(variables, values, strict=True):
            if variable.is_environment:
                environment[variable.name] = value
            else:
                arguments += [variable.name, value]
        return dataclasses.replace(self, environment=environment, arguments=tuple(arguments))


def run_once(program: Program, seed: int, case: Case, folder: pathlib.Path) -> float:
    """One run in a folder of its own; returns its metric.

    Raises:
        ExperimentError: The program failed, took too long or has no metric.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {**os.environ, **case.environment, "Q7X2_LEDGER": str(folder / "ledger")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", str(program.ranks)]
    launcher = [*case.launcher, sys.executable] if case.launcher else torchrun
    command = [*program.command, program.seed_argument, str(seed), *case.arguments]
    output = folder / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*launcher, *command],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(program.timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise _failed(output, f"took longer than {program.timeout:g} s") from None
            raise
    if status != 0:
        raise _failed(output, f"ended with status {status}")
    return _metric(program.metric, folder)


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
        analysis = ledger_causes.analyse(ledger_reader.read(folder / "ledger"))
    except ledger_reader.LedgerError as error:
        raise _failed(folder / "output.txt", f"left no ledger: {error}") from error
    if name == "step_seconds":
        if analysis.boundaries.origin == "none":
            raise _failed(folder / "output.txt", "has no steps; q7x2.log_step says where they end")
        return statistics.median(step.seconds for step in analysis.steps)
    losses = [loss for loss in analysis.boundaries.losses if loss is not None]
    if not losses:
        raise _failed(folder / "output.txt", "has no loss; q7x2.log_step(loss) writes it")
    return losses[-1]
