"""Runs stages one after another: each has a limit, and one that fails does not stop the others."""

from __future__ import annotations

import datetime
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import facts


class StageFailed(Exception):
    """The stage found something wrong, or could not run; the text says what."""


class StageSkipped(Exception):
    """This machine lacks what the stage needs; the text says what."""


@dataclass(frozen=True)
class Result:
    """What a stage found: figures for the JSON file, and their table for the Markdown file."""

    figures: dict[str, Any] = field(default_factory=dict)
    table: str = ""


class Session:
    """What a stage works with: folders, and commands that end at the stage's limit."""

    def __init__(self, build: Path, log: Path, limit_s: float) -> None:
        self.build = build
        self._log = log
        self._deadline = time.monotonic() + limit_s

    def call(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        limit_s: float = math.inf,
    ) -> str:
        """Run ``command`` and return its output, which also goes to the terminal and the log.

        Args:
            env: variables beside those of this process.
            limit_s: seconds that the command may take, if the stage has as many left.

        Raises:
            StageFailed: it exits with another code than 0, or does not end in time. Then the
                command and all its children are killed.
        """
        allowed = max(0.0, min(limit_s, self._deadline - time.monotonic()))
        words = [str(word) for word in command]
        lines: list[str] = []
        with self._log.open("a") as log:
            log.write(f"$ {shlex.join(words)}\n")
            process = subprocess.Popen(
                words,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )

            def read() -> None:
                assert process.stdout is not None
                for line in process.stdout:
                    lines.append(line)
                    log.write(line)
                    log.flush()
                    sys.stdout.write(line)
                    sys.stdout.flush()

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            try:
                code = process.wait(allowed)
            except subprocess.TimeoutExpired:
                text = f"{shlex.join(words)} was ended after {allowed:.1f} s"
                raise StageFailed(text) from None
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                reader.join(timeout=10)  # a child may hold the pipe
        output = "".join(lines)
        if code != 0:
            raise StageFailed(f"{shlex.join(words)} exited with {code}")
        return output


@dataclass(frozen=True)
class Stage:
    """One step of `./dev gpu`.

    Attributes:
        name: as on the command line.
        what: one line for `--list`.
        limit_s: seconds after which it is ended and has failed.
        run: raises StageFailed or StageSkipped.
    """

    name: str
    what: str
    limit_s: float
    run: Callable[[Session], Result]


class Report:
    """The results in a folder: gpu.json, gpu.md and gpu.log.

    A later call adds its stages to those of earlier calls, unless the machine or the commit is
    another one: then the file begins anew.
    """

    def __init__(self, out: Path, machine: dict[str, Any]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._json, self._markdown, self.log = (out / f"gpu.{end}" for end in ("json", "md", "log"))
        self.stages: dict[str, dict[str, Any]] = {}
        self._machine = machine
        if self._json.exists():
            earlier = json.loads(self._json.read_text())
            if all(earlier["machine"][key] == machine[key] for key in ("commit", "gpus")):
                self.stages = earlier["stages"]

    def add(self, name: str, entry: dict[str, Any]) -> None:
        """Write the outcome of a stage."""
        self.stages[name] = entry
        content = {"machine": self._machine, "stages": self.stages}
        self._json.write_text(json.dumps(content, indent=1) + "\n")
        self._markdown.write_text(_markdown(self._machine, self.stages))


def run_stages(stages: Sequence[Stage], report: Report, build: Path) -> list[str]:
    """Run ``stages`` in turn, and return the names of those that failed."""
    outcomes = {}
    for stage in stages:
        print(f"==> {stage.name}: {stage.what}", flush=True)
        begin = time.monotonic()
        result, status, reason = Result(), "passed", ""
        try:
            result = stage.run(Session(build, report.log, stage.limit_s))
        except StageSkipped as skipped:
            status, reason = "skipped", str(skipped)
        except StageFailed as failed:
            status, reason = "failed", str(failed)
        except Exception as error:  # the other stages can still tell something
            status, reason = "failed", f"{type(error).__name__}: {error}"
        now = datetime.datetime.now(datetime.timezone.utc)
        entry = {
            "status": status,
            "reason": reason,
            "seconds": round(time.monotonic() - begin, 1),
            "time": now.isoformat(timespec="seconds"),
            "figures": result.figures,
            "table": result.table,
        }
        report.add(stage.name, entry)
        outcomes[stage.name] = entry
        if result.table:
            print(result.table)
    print("==> summary")
    for name, entry in outcomes.items():
        print(f"{name:10} {entry['status']:8} {entry['seconds']:7.1f} s  {entry['reason']}")
    return [name for name, entry in outcomes.items() if entry["status"] == "failed"]


def _markdown(machine: dict[str, Any], stages: dict[str, dict[str, Any]]) -> str:
    gpus = ", ".join(machine["gpus"])
    lines = [
        "# q7x2 on a GPU",
        "",
        f"{gpus}; driver {machine['driver']}, CUDA {machine['cuda']} (torch), nvcc "
        f"{machine['nvcc']}; {facts.describe(machine)}",
        "",
        "| stage | result | seconds | |",
        "| --- | --- | --- | --- |",
    ]
    for name, entry in stages.items():
        reason = entry["reason"].replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {entry['status']} | {entry['seconds']:g} | {reason} |")
    for name, entry in stages.items():
        if entry["table"]:
            lines += ["", f"## {name}", "", entry["table"].rstrip()]
    return "\n".join(lines) + "\n"
