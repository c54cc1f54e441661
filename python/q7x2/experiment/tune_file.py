"""The file of ``q7x2 experiment run --tune``: settings to choose from, and networks to try them on.

It has the entries of other experiments, and instead of ``[variable]``:

    margin = 0.02                       # a smaller gain changes nothing

    [tune]
    budget = 60                         # runs of the search

    [[tune.variables]]
    environment = "Q7X2_ALGO"           # or: argument = "--hook"
    baseline = "ring"                   # the old value
    variants = ["sra", "auto"]

    [[tune.networks]]                   # where the search runs
    name = "1 Gbit/s"
    launcher = ["./on_lab"]             # those of the file, if it is not given
    start = ["./lab_up", "1gbit"]       # before the first run on it
    stop = ["./lab_down"]               # after the last one

    [tune.held_out]                     # where the winner is validated
    name = "200 Mbit/s"
    launcher = ["./on_lab"]
    start = ["./lab_up", "200mbit"]
    stop = ["./lab_down"]
    environment = { LAB = "slow" }      # beside the variables of the file

``seeds`` are those of the validation. The search has seeds of its own.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator
from typing import Any

from q7x2._core import toml
from q7x2.experiment.file import (
    CONFIDENCE,
    Program,
    Variable,
    check_names,
    check_seeds,
    environment,
    program,
    variable,
)


@dataclasses.dataclass(frozen=True)
class Network:
    """Where runs happen. ``start`` and ``stop`` are commands around the runs; empty: none."""

    name: str
    launcher: tuple[str, ...]
    start: tuple[str, ...]
    stop: tuple[str, ...]
    environment: dict[str, str]

    def is_like(self, other: Network) -> bool:
        """Whether both are the same but for their names."""
        return dataclasses.replace(self, name=other.name) == other


@dataclasses.dataclass(frozen=True)
class Tuning(Program):
    """A checked file. A setting has one value per variable."""

    variables: tuple[Variable, ...]
    networks: tuple[Network, ...]
    held_out: Network
    budget: int

    @property
    def old(self) -> tuple[str, ...]:
        """The setting that is kept unless another one is proven better."""
        return tuple(each.baseline for each in self.variables)

    @property
    def settings(self) -> int:
        """How many settings there are beside the old one."""
        return math.prod(len(each.variants) + 1 for each in self.variables) - 1

    def setting(self, number: int) -> tuple[str, ...]:
        """One of them; ``number`` is below ``settings``."""
        values, rest = [], number + 1  # 0 would be the old one
        for each in reversed(self.variables):
            rest, digit = divmod(rest, len(each.variants) + 1)
            values.append((each.baseline, *each.variants)[digit])
        return tuple(reversed(values))


def read(path: pathlib.Path) -> Tuning:
    """The tuning of a file.

    Raises:
        ValueError: An entry is wrong.
        OSError: The file cannot be read.
    """
    table = toml.read(path)
    if "tune" not in table:
        raise ValueError(f"{path}: expected [tune], with the settings and the networks")
    entries = toml.Entries(table, str(path))
    common = program(entries, path)
    tune = toml.Entries(entries.table("tune"), entries.name("tune"))
    tuning = Tuning(
        **common,
        variables=tuple(variable(each) for each in tune.tables("variables")),
        networks=tuple(_network(each, common) for each in tune.tables("networks")),
        held_out=_network(toml.Entries(tune.table("held_out"), tune.name("held_out")), common),
        budget=tune.integer("budget", least=1),
    )
    tune.end()
    entries.end()
    for problem in _problems(tuning):
        raise ValueError(f"{tune.where}: {problem}")
    for network in (*tuning.networks, tuning.held_out):
        check_names(tuning.variables, network.environment, tune.where)
    check_seeds(tuning.seeds, CONFIDENCE, 1, str(path))
    return tuning


def _network(entries: toml.Entries, common: dict[str, Any]) -> Network:
    own = environment(entries.table("environment"), entries.name("environment"))
    network = Network(
        name=entries.text("name"),
        launcher=tuple(entries.strings("launcher", common["launcher"])),
        start=tuple(entries.strings("start", ())),
        stop=tuple(entries.strings("stop", ())),
        environment=common["environment"] | own,
    )
    entries.end()
    return network


def _problems(tuning: Tuning) -> Iterator[str]:
    """What is wrong with the entries together."""
    variables = [each.name for each in tuning.variables]
    if not variables:
        yield "variables: expected at least one [[tune.variables]]"
    if len(set(variables)) != len(variables):
        yield f"variables: expected each name once, got {variables}"
    if not tuning.networks:
        yield "networks: expected at least one [[tune.networks]]"
    names = [each.name for each in (*tuning.networks, tuning.held_out)]
    if len(set(names)) != len(names):
        yield f"networks, held_out: expected each name once, got {names}"
    for each in tuning.networks:
        if tuning.held_out.is_like(each):
            yield (
                f"held_out: expected a network that the search does not use, got the commands and "
                f"variables of {each.name!r}"
            )
    fewest = 2 * len(tuning.networks)  # one setting and the old one
    if tuning.budget < fewest:
        yield f"budget: expected at least {fewest} runs, got {tuning.budget}"
