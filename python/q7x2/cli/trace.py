"""``q7x2 trace``: the ledgers of all ranks as a timeline for Perfetto or chrome://tracing.

A rank is a process of the timeline, and a group a track in it. Operations of a group that overlap
are on further tracks. Below an operation lie its phases. The ledger knows how long each of them
took in sum, but not when: they are drawn in a fixed order. Phases of several threads at once, whose
sum is longer than the operation, are drawn shorter; their arguments have the true times.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from q7x2._core.units import time_text

if TYPE_CHECKING:
    from q7x2.ledger.reader import Ledger

_PHASES = ("encode", "copy", "reduce", "decode", "waited")
_MOST_TRACKS = 64


def add_parser(commands: Any) -> None:
    """Add ``trace`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "trace",
        help="draw the ledgers of all ranks as a timeline for Perfetto",
        epilog="Q7X2_LEDGER=DIR makes each rank of a job write its ledger there. Open the file at "
        "https://ui.perfetto.dev or chrome://tracing.",
    )
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="with the ledgers")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        help="the file to write (DIR/trace.json); compressed if it ends in .gz",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2.ledger import reader as ledger_reader

    path: pathlib.Path = options.out or options.directory / "trace.json"
    try:
        ledgers = ledger_reader.read(options.directory)
        count = write(ledgers, path)
    except (ledger_reader.LedgerError, OSError) as error:
        print(f"q7x2 trace: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {count} operations of {len(ledgers)} ranks")
    for ledger in ledgers:
        if ledger.lost > 0:
            print(f"rank {ledger.rank} has lost {ledger.lost} operations")
    return 0


def write(ledgers: Sequence[Ledger], path: pathlib.Path) -> int:
    """Write the timeline of ``ledgers`` to ``path``; return the number of operations."""
    count = 0
    with _open(path) as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = ""
        for event in events(ledgers):
            file.write(separator + json.dumps(event))
            separator = ",\n"
            count += event.get("cat") == "operation"
        file.write("\n]}\n")
    return count


def _open(path: pathlib.Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "wt")
    return path.open("w")


def events(ledgers: Sequence[Ledger]) -> Iterator[dict[str, Any]]:
    """The events of the timeline, with times in microseconds from the first submission on."""
    spans = [span for span in (ledger.span() for ledger in ledgers) if span is not None]
    begin = min((span[0] for span in spans), default=0)
    for ledger in ledgers:
        host, pid = ledger.facts["host"], ledger.facts["pid"]
        uncertainty = ledger.uncertainty_ns
        clock = "unknown" if uncertainty is None else time_text(uncertainty * 1e-9)
        yield _name("process_name", ledger.rank, 0, f"rank {ledger.rank} ({host}, pid {pid})")
        yield _name("process_labels", ledger.rank, 0, f"clock right within: {clock}", "labels")
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": ledger.rank,
            "args": {"sort_index": ledger.rank},
        }
        yield from _Rank(ledger, begin).events()


def _name(kind: str, pid: int, tid: int, text: str, key: str = "name") -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {key: text}}


class _Rank:
    """One rank's events."""

    def __init__(self, ledger: Ledger, begin: int) -> None:
        self._ledger = ledger
        self._begin = begin
        self._groups = ledger.groups()
        # By runtime and group: its number here, and when each of its tracks is free.
        self._numbers: dict[tuple[int, int], int] = {}
        self._free: dict[tuple[int, int], list[int]] = {}

    def events(self) -> Iterator[dict[str, Any]]:
        for operation in self._ledger.operations():
            key = operation["runtime"], operation["pg"]
            index, is_new = self._track(key, operation)
            number = self._numbers.setdefault(key, len(self._numbers))
            tid = 1 + number * _MOST_TRACKS + index
            if is_new:
                name = self._groups[key]["name"] if key in self._groups else "unknown"
                title = f"group '{name}'" + (f" ({index + 1})" if index else "")
                yield _name("thread_name", self._ledger.rank, tid, title)
            yield from self._operation(operation, tid)

    def _track(self, key: tuple[int, int], operation: dict[str, Any]) -> tuple[int, bool]:
        """The first track of the group that is free; the last one if there are too many."""
        tracks = self._free.setdefault(key, [])
        for index, free in enumerate(tracks):
            if free <= operation["queued_ns"] or index + 1 == _MOST_TRACKS:
                tracks[index] = max(free, operation["finished_ns"])
                return index, False
        tracks.append(operation["finished_ns"])
        return len(tracks) - 1, True

    def _operation(self, operation: dict[str, Any], tid: int) -> Iterator[dict[str, Any]]:
        queued, finished = operation["queued_ns"], operation["finished_ns"]
        name = operation["operation"]
        if operation["internal"]:
            name += " (preparation)"
        yield self._slice(name, "operation", tid, queued, finished, self._arguments(operation))
        started = operation["started_ns"]
        if started is None:
            return
        if started > queued:
            yield self._slice("queued", "phase", tid, queued, started, {})
        times = {phase: operation[f"{phase}_ns"] for phase in _PHASES}
        total = sum(times.values())
        scale = min(1.0, (finished - started) / total) if total else 1.0
        at = float(started)
        for phase, taken in times.items():
            if taken > 0:
                end = min(at + taken * scale, finished)
                yield self._slice(phase, "phase", tid, at, end, {"ns": taken})
                at = end

    def _slice(
        self,
        name: str,
        category: str,
        tid: int,
        begin: float,
        end: float,
        arguments: dict[str, Any],
    ) -> dict[str, Any]:
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": self._ledger.rank,
            "tid": tid,
            "ts": (begin - self._begin) * 1e-3,
            "dur": (end - begin) * 1e-3,
            "args": arguments,
        }

    def _arguments(self, operation: dict[str, Any]) -> dict[str, Any]:
        kept = (
            "sequence",
            "peer",
            "dtype",
            "reduce",
            "plan",
            "codec",
            "slices",
            "input_bytes",
            "output_bytes",
            "sent_network",
            "received_network",
            "sent_memory",
            "received_memory",
            "select_ns",
            "predicted_ns",
            "error",
        )
        arguments = {key: operation[key] for key in kept if operation[key] is not None}
        if operation["waited_for"] is not None:
            arguments["slowest_peer"] = operation["waited_for"]
            arguments["slowest_peer_percent_of_waiting"] = operation["waited_percent"]
        return arguments
