"""The folder of an experiment: what was run there, and on what."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

from q7x2._core.json_values import parse
from q7x2.experiment.file import Program
from q7x2.experiment.program import ExperimentError


def claim(experiment: Program, directory: pathlib.Path) -> None:
    """The first run writes what the experiment is and where it runs; later ones compare.

    Raises:
        ExperimentError: The directory has results of another experiment, or from elsewhere.
        OSError: The directory cannot be written to.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "experiment.json"
    if path.exists():
        known = parse(path.read_text())
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
    from q7x2.ledger.writer import machine_facts

    facts = machine_facts()
    for changing in ("pid", "boot_id", "begun_wall_ns", "accelerator"):
        del facts[changing]
    return {**facts, "commit": _commit()}


def _commit() -> str | None:
    """The commit of the current directory, with a + if tracked files differ; None outside git."""
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


def add(directory: pathlib.Path, row: dict[str, Any]) -> None:
    """Write down a run that is over."""
    with _results(directory).open("a") as file:
        file.write(json.dumps(row) + "\n")


def rows(directory: pathlib.Path) -> Iterator[dict[str, Any]]:
    """All runs that were written down."""
    path = _results(directory)
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the last one, of a run that was killed
            yield json.loads(line)


def _results(directory: pathlib.Path) -> pathlib.Path:
    return directory / "results.jsonl"
