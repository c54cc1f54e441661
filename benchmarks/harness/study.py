"""What studies share: their command line, the ranks that they run on, ways in turns, results."""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from benchmarks.harness import RESULTS, facts, launch, report
from benchmarks.harness.lab import Lab
from benchmarks.harness.processes import OnLine, run_ranks
from benchmarks.harness.schedule import bytes_sent

T = TypeVar("T")
# What a study says about its results; `pages` puts it into docs/.
Lines = Callable[[Mapping[str, Any]], list[str]]


def parser(module: str, protocol: str | None) -> argparse.ArgumentParser:
    """The command line of a study, with `--out`; the command has the name of the module."""
    name = module.rpartition(".")[2]
    made = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=protocol)
    made.add_argument("--out", type=Path, default=RESULTS / f"{name}.json")
    return made


def chosen(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The values of some arguments, by name."""
    return {name: getattr(args, name) for name in names}


def run(
    module: str,
    spec: Mapping[str, Any],
    ranks: int = 0,
    *,
    lab: Lab | None = None,
    placement: Sequence[int] | None = None,
    env: Mapping[str, str] | None = None,
    apart: bool = False,
    own_cache: bool = True,
    timeout_s: float = 3600,
    on_line: OnLine | None = None,
) -> Any:
    """Calls `rank_main(spec)` of a module on all ranks, and returns what one of them returned.

    All ranks but one return None. The spec and the result are plain values.

    Args:
        ranks: On this machine; a lab has one on each host.
        placement: The host of each rank in the lab, if not.
        env: Variables of all ranks.
        apart: Ranks of this machine pass as hosts of their own.
        own_cache: The ranks of a lab do not read what earlier runs have found of the network.
        on_line: Is given (rank, line) for each line of output.
    """
    with tempfile.TemporaryDirectory(prefix="q7x2-study-") as folder:
        out = Path(folder) / "result.json"
        program = [sys.executable, "-m", "benchmarks.harness.study"]
        command = [*program, module, json.dumps(spec), str(out)]
        shared = {"OMP_NUM_THREADS": "1", "PYTHONPATH": launch.python_path(), **(env or {})}
        if lab is not None:
            shared |= {"XDG_CACHE_HOME": folder} if own_cache else {}
            lab.run(
                command,
                placement=placement,
                env=shared,
                timeout_s=timeout_s,
                on_line=on_line,
            )
        else:
            made = launch.separate_environments if apart else launch.rank_environments
            run_ranks([command] * ranks, made(ranks, shared), timeout_s, on_line)
        return json.loads(out.read_text()) if out.exists() else None


def in_turns(
    ways: Mapping[str, Callable[[T], object]], rounds: int, given: Callable[[int], T]
) -> tuple[dict[str, dict[str, Any]], dict[str, T]]:
    """Measures ways of doing the same on all ranks: each once per round, and each first in turn.

    Args:
        ways: By name, the calls that are timed.
        rounds: Those that count. There is one before them.
        given: Makes the argument of each call, untimed, from the number of its round.

    Returns:
        By way: the medians of `seconds` (of the slowest rank), of `bytes_sent` (most of any host)
        and of `cpu_seconds` (of all ranks), and `all_seconds`. And the argument of each way's last
        call, which the call may have changed.
    """
    names = tuple(ways)
    figures: dict[str, list[list[float]]] = {name: [] for name in names}
    arguments: dict[str, T] = {}
    for turn in range(rounds + 1):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            arguments[name] = given(turn)
            dist.barrier()
            sent, cpu, begin = bytes_sent(), time.process_time(), time.perf_counter()
            ways[name](arguments[name])
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
            dist.barrier()
            most = largest([seconds, float(bytes_sent() - sent)])
            total = torch.tensor([cpu], dtype=torch.float64)
            dist.all_reduce(total)
            figures[name].append([*most, *total.tolist()])
    found = {}
    for name, rows in figures.items():
        medians = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
        found[name] = dict(zip(("seconds", "bytes_sent", "cpu_seconds"), medians, strict=True))
        found[name]["all_seconds"] = [row[0] for row in rows[1:]]
    return found, arguments


def largest(figures: Sequence[float]) -> list[float]:
    """Each figure of the rank that has the largest one, such as the time of the slowest rank."""
    most = torch.tensor(figures, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    found: list[float] = most.tolist()
    return found


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call on this rank."""
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def timed_for(seconds: float, call: Callable[[], object], at_once: int) -> list[float]:
    """Seconds of each call on this rank; all ranks stop together, when rank 0's time is over.

    Args:
        at_once: Calls between two looks at the clock.
    """
    found: list[float] = []
    end = time.monotonic() + seconds
    goes_on = torch.ones(1)
    while goes_on.item():
        found += [timed(call) for _ in range(at_once)]
        goes_on.fill_(float(time.monotonic() < end))
        dist.broadcast(goes_on, 0)
    return found


def median_seconds(
    calls: Mapping[str, Callable[[], object]], rounds: int, warm_ups: int = 0
) -> dict[str, float]:
    """The median time of each of some calls of this process, which take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm_ups + rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if turn >= warm_ups:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}


def largest_all_reduces() -> dict[str, Any]:
    """What the default group's history has of its largest all-reduces without a codec."""
    import q7x2

    history = q7x2.plan.plan_history()
    kinds = [kind for kind in history if kind["collective"] == "all_reduce" and not kind["codec"]]
    return max(kinds, key=lambda kind: kind["bytes"])


def publish(
    out: Path, body: Mapping[str, Any], lines: Lines, machine: dict[str, Any] | None = None
) -> None:
    """Writes the results with the facts of the machine, and prints their lines."""
    machine = machine or facts.collect()
    report.write_json(out, machine, dict(body))
    console = report.console()
    report.print_facts(console, machine)
    for line in lines(body):
        console.print(line, markup=False)


def publish_rows(out: Path, rows: Iterable[dict[str, Any]], lines: Lines) -> None:
    """Writes and prints each row as soon as it is measured."""
    machine = facts.collect()
    done = []
    for row in rows:
        done.append(row)
        print("\n".join(lines({"rows": [row]})), flush=True)
        report.write_json(out, machine, {"rows": done})


def _rank(module: str, spec: dict[str, Any], out: Path) -> None:
    torch.set_num_threads(1)
    found = importlib.import_module(module).rank_main(spec)
    if found is not None:
        out.write_text(json.dumps(found))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    _rank(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
