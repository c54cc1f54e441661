"""The file of an experiment: one variable under test, all else equal.

    version = 1
    name = "ring against sra"
    command = ["train.py", "--steps", "200"]   # run by Python on each rank
    ranks = 2
    seed_argument = "--seed"                   # the command gets it with each of the seeds
    seeds = [0, 1, 2, 3, 4, 5, 6, 7]
    metric = "step_seconds"
    timeout = 300                              # seconds of one run

    [variable]
    environment = "Q7X2_ALGO"                  # or: argument = "--hook"
    baseline = "ring"
    variants = ["sra"]

    [environment]                              # of all runs
    OMP_NUM_THREADS = "1"

``metric`` is ``step_seconds`` (the median of the steps), ``loss`` (the last one that was given to
``q7x2.log_step``), or ``printed:NAME`` (the last line ``NAME=<number>`` of rank 0). Smaller is
better, unless ``better = "larger"``. A difference counts if all of its interval is beyond
``margin``, a share of the baseline's value (0 if it is not given). ``launcher`` replaces torchrun
on this host: a command that gets ``python``, the command and its arguments, and starts all ranks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from q7x2._core import toml
from q7x2._core.sign_test import fewest_pairs

_VERSION = 1
CONFIDENCE = 0.95
_PRINTED = "printed:"
_LEDGER_VARIABLES = ("Q7X2_LEDGER", "Q7X2_FLIGHT_RECORDER")


@dataclasses.dataclass(frozen=True)
class Variable:
    """What is under test: an environment variable or an argument of the command."""

    is_environment: bool
    name: str
    baseline: str
    variants: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """What all experiments have. ``digest`` tells files with different contents apart."""

    name: str
    command: tuple[str, ...]
    launcher: tuple[str, ...]
    ranks: int
    seed_argument: str
    seeds: tuple[int, ...]
    metric: str
    is_larger_better: bool
    margin: float
    timeout: float
    environment: dict[str, str]
    digest: str


@dataclasses.dataclass(frozen=True)
class Experiment(Program):
    """A checked file."""

    variable: Variable

    @property
    def confidence(self) -> float:
        """The confidence of one variant's interval, so that all verdicts together hold at 95 %."""
        return 1 - (1 - CONFIDENCE) / len(self.variable.variants)


def read(path: pathlib.Path) -> Experiment:
    """The experiment of a file.

    Raises:
        ValueError: An entry is wrong.
        OSError: The file cannot be read.
    """
    table = toml.read(path)
    if "tune" in table:
        raise ValueError(f"{path}: has [tune]: expected q7x2 experiment run --tune")
    entries = toml.Entries(table, str(path))
    common = program(entries, path)
    under_test = variable(toml.Entries(entries.table("variable"), entries.name("variable")))
    experiment = Experiment(**common, variable=under_test)
    entries.end()
    check_names([under_test], experiment.environment, str(path))
    check_seeds(experiment.seeds, experiment.confidence, len(under_test.variants), str(path))
    return experiment


def program(entries: toml.Entries, path: pathlib.Path) -> dict[str, Any]:
    """The fields of ``Program``, taken out of a file's entries."""
    version = entries.integer("version")
    if version != _VERSION:
        raise ValueError(f"{path}: version: expected {_VERSION}, got {version}")
    command = tuple(entries.strings("command"))
    if not command:
        raise ValueError(f"{path}: command: expected a program")
    return {
        "name": entries.text("name"),
        "command": command,
        "launcher": tuple(entries.strings("launcher", ())),
        "ranks": entries.integer("ranks", 1, least=1),
        "seed_argument": entries.text("seed_argument", "--seed"),
        "seeds": _seeds(entries),
        "metric": _metric(entries),
        "is_larger_better": entries.text("better", "smaller", ("smaller", "larger")) == "larger",
        "margin": entries.number("margin", 0.0, most=1.0),
        "timeout": entries.number("timeout", 3600.0, least=1.0),
        "environment": environment(entries.table("environment"), entries.name("environment")),
        "digest": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def check_names(variables: Sequence[Variable], fixed: Mapping[str, str], where: str) -> None:
    """Refuse a variable under test that all runs get as well."""
    for each in variables:
        if each.is_environment and each.name in fixed:
            raise ValueError(f"{where}: {each.name} is under test: expected one value")


def check_seeds(seeds: Sequence[int], confidence: float, variants: int, where: str) -> None:
    """Refuse fewer seeds than an interval needs."""
    fewest = fewest_pairs(confidence)
    if len(seeds) < fewest:
        raise ValueError(
            f"{where}: seeds: expected at least {fewest} for {variants} variants, got "
            f"{len(seeds)}: with fewer no verdict is possible"
        )


def _seeds(entries: toml.Entries) -> tuple[int, ...]:
    seeds = entries.integers("seeds")
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"{entries.name('seeds')}: expected each seed once, got {seeds}")
    return tuple(seeds)


def _metric(entries: toml.Entries) -> str:
    metric = entries.text("metric", "step_seconds")
    if metric not in ("step_seconds", "loss") and not metric.removeprefix(_PRINTED):
        raise ValueError(f"{entries.name('metric')}: expected a name after {_PRINTED}")
    if metric not in ("step_seconds", "loss") and not metric.startswith(_PRINTED):
        raise ValueError(
            f"{entries.name('metric')}: expected step_seconds, loss or {_PRINTED}NAME, got "
            f"{metric!r}"
        )
    return metric


def variable(entries: toml.Entries) -> Variable:
    """One variable under test, with its values."""
    where = entries.where
    is_environment = entries.has("environment")
    if is_environment == entries.has("argument"):
        raise ValueError(f"{where}: expected either environment or argument")
    found = Variable(
        is_environment,
        entries.text("environment" if is_environment else "argument"),
        entries.text("baseline"),
        tuple(entries.strings("variants")),
    )
    entries.end()
    if is_environment and found.name in _LEDGER_VARIABLES:
        raise ValueError(f"{where}: {found.name} is set by the experiment itself")
    values = [found.baseline, *found.variants]
    if len(values) < 2 or len(set(values)) != len(values):
        raise ValueError(
            f"{where}: expected at least one variant, and each value once; got {values}"
        )
    return found


def environment(table: Mapping[str, Any], where: str) -> dict[str, str]:
    """Environment variables of runs."""
    for name, value in table.items():
        if not isinstance(value, str):
            raise ValueError(f"{where}: {name}: expected a text, got {value!r}")
        if name in _LEDGER_VARIABLES:
            raise ValueError(f"{where}: {name} is set by the experiment itself")
    return dict(table)
