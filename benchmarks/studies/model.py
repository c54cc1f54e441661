"""What the simulator predicts, beside what is measured.

Every row is one collective at one size with one forced algorithm on one topology. The prediction is
made from the Fabric that the start-up probe found there, with nothing set by hand, for the Plan,
the slices and the window that the planner chooses for that algorithm. The simulator knows nothing
of Python and c10d: on one host, where they count, the time of a call to an empty backend, measured
in the same run, is added. Calls follow each other without a pause, in blocks that hold several.

The constants of the model (`csrc/plan/cost/model.h`) were found on the topologies of FITTED. Those
of HELD_OUT had no part in it, and the goals are for them. A new case is a new row of one of the
two.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter
from q7x2._core.extension import load
from q7x2._core.palette import LINES
from q7x2._core.units import parse_size

from benchmarks.harness import facts, launch, report
from benchmarks.harness.arguments import option
from benchmarks.harness.backends import EMPTY
from benchmarks.harness.ops import OPS, ROOT
from benchmarks.regress.goals import FOUR_HOSTS, PRIVATE_LINKS, TWO_RACKS
from tests.lab import Topology
from tests.lab.processes import RanksFailed

GOAL_MEDIAN = 0.07
GOAL_P90 = 0.20


@dataclass(frozen=True)
class Case:
    """`op` at each of `sizes` with each of `algorithms`, all in one job.

    Attributes:
        place: what rows of one topology are called.
        topology: virtual hosts, or None for this machine.
        ranks: on this machine, or on each host.
        block_seconds: the least length of a turn: that of several calls.
    """

    place: str
    topology: Topology | None
    op: str
    sizes: tuple[str, ...]
    algorithms: tuple[str, ...]
    ranks: int = 1
    block_seconds: float = 0.15


GIGABIT = "4 hosts x 1 Gbit/s"
SLOW = "4 hosts x 100 Mbit/s"
RACKS = "2 racks x 4 hosts"
LINKS = "private links"
ONE_HOST = "one host, 2 ranks"
THREE = "3 hosts x 500 Mbit/s"
CROWDED = "one host, 4 ranks"
TWO_BY_FOUR = "2 hosts x 4 ranks, 1 Gbit/s"
FOUR_BY_TWO = "4 hosts x 2 ranks, 1 Gbit/s"
FIVE = "5 hosts x 300 Mbit/s"
SMALL_RACKS = "2 racks x 2 hosts x 2 ranks"
SLOW_HOSTS = Topology(hosts=4, rate="100mbit")
THREE_HOSTS = Topology(hosts=3, rate="500mbit")
TWO_HOSTS = Topology(hosts=2, rate="1gbit")
FIVE_HOSTS = Topology(hosts=5, rate="300mbit")
FOUR_IN_RACKS = Topology(hosts=4, rate="200mbit", racks=2, uplink="100mbit")
SEVERAL = ("ring", "sra", "halving_doubling", "hierarchical")
SUMS = ("ring", "sra", "halving_doubling", "recursive_doubling", "ccube")
MOVES = ("ring", "halving_doubling")
PLACED = ("ring", "ccube", "hierarchical", "blink")
PACKED = ("ring", "ccube", "aggregator", "blink")

FITTED = (
    Case(ONE_HOST, None, "all_reduce", ("64K", "1M", "4M"), ("direct", "ring", "ccube"), 2),
    Case(ONE_HOST, None, "broadcast", ("1M",), ("direct", "ccube"), 2),
    Case(ONE_HOST, None, "all_gather", ("1M",), ("direct", "ring"), 2),
    Case(THREE, THREE_HOSTS, "all_reduce", ("64K", "1M"), (*SUMS, "direct")),
    Case(GIGABIT, FOUR_HOSTS, "all_reduce", ("64K", "1M", "4M"), SUMS),
    Case(GIGABIT, FOUR_HOSTS, "broadcast", ("1M",), ("direct", "chain", "binomial_tree")),
    Case(GIGABIT, FOUR_HOSTS, "all_gather", ("1M",), MOVES),
    Case(GIGABIT, FOUR_HOSTS, "reduce_scatter", ("1M",), MOVES),
    Case(SLOW, SLOW_HOSTS, "all_reduce", ("64K", "1M"), SUMS),
    Case(RACKS, TWO_RACKS, "all_reduce", ("2M",), PLACED, block_seconds=1),
    Case(LINKS, PRIVATE_LINKS, "all_reduce", ("1M", "4M"), PACKED, block_seconds=1),
)
HELD_OUT = (
    Case(CROWDED, None, "all_reduce", ("256K", "2M"), ("direct", "ring", "sra"), 4),
    Case(TWO_BY_FOUR, TWO_HOSTS, "all_reduce", ("256K", "2M"), SEVERAL, 4, 0.3),
    Case(TWO_BY_FOUR, TWO_HOSTS, "all_gather", ("2M",), ("ring", "hierarchical"), 4, 0.3),
    Case(TWO_BY_FOUR, TWO_HOSTS, "broadcast", ("2M",), ("chain", "hierarchical"), 4, 0.3),
    Case(FOUR_BY_TWO, FOUR_HOSTS, "all_reduce", ("256K", "2M"), SEVERAL, 2, 0.3),
    Case(FOUR_BY_TWO, FOUR_HOSTS, "reduce_scatter", ("2M",), ("ring", "hierarchical"), 2, 0.3),
    Case(FIVE, FIVE_HOSTS, "all_reduce", ("32K", "256K", "2M"), SUMS, block_seconds=0.3),
    Case(FIVE, FIVE_HOSTS, "broadcast", ("256K",), ("direct", "chain", "binomial_tree")),
    Case(FIVE, FIVE_HOSTS, "all_to_all", ("2M",), ("pairwise",), block_seconds=0.3),
    Case(SMALL_RACKS, FOUR_IN_RACKS, "all_reduce", ("256K", "2M"), SEVERAL, 2, 0.5),
)

OPTIONS = {
    "only": option(
        None, "cases whose place and collective have one of these texts in them", nargs="+"
    ),
    "blocks": option(3, "turns of each algorithm"),
    "again": option(
        None,
        "keeps these results of the same commit; only what --only names is measured anew",
        type=Path,
    ),
}


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    runs: dict[tuple[str, str], dict[str, Any]] = {}
    if args.again:
        earlier = json.loads(args.again.read_text())
        if earlier["machine"]["commit"] != facts.collect()["commit"]:
            raise ValueError(
                f"{args.again} is of another commit, which may have cut the data otherwise"
            )
        runs = {_key(run["case"]): run for run in earlier["runs"]}
    cases = [*FITTED, *HELD_OUT]
    if args.only or args.again:
        wanted = args.only or []
        cases = [c for c in cases if any(text in f"{c.place} {c.op}" for text in wanted)]
    for case in cases:
        try:
            run = _measured(case, args.blocks)
            runs[_key(run["case"])] = run
        except (RanksFailed, launch.TrafficError) as failure:
            # The others are still worth having, and `--again` adds this one.
            print(f"{case.place}, {case.op}: {failure}", file=sys.stderr)
        rows = [row for run in runs.values() for row in _compare(run)]
        yield {"rows": rows, "runs": list(runs.values())}


def write_more(out: Path, results: dict[str, Any]) -> None:
    """The page and the picture."""
    out.with_suffix(".md").write_text(_markdown(results["machine"], results["rows"]))
    _draw(out.with_suffix(".png"), facts.describe(results["machine"]), results["rows"])


def _key(case: dict[str, Any]) -> tuple[str, str]:
    return case["place"], case["op"]


def _measured(case: Case, blocks: int) -> dict[str, Any]:
    """The measured cells of a case, and the Fabric that its ranks found when they started."""
    # Between hosts it is an error to move no bytes; in an all_gather it copies some.
    calls_count = not case.topology and case.op != "all_gather"
    algorithms = [f"q7x2:{algorithm}" for algorithm in case.algorithms]
    job = launch.Job(
        ops=(case.op,),
        sizes=tuple(parse_size(size) for size in case.sizes),
        backends=(*algorithms, *([EMPTY] if calls_count else [])),
        ranks=case.ranks * (case.topology.hosts if case.topology else 1),
        blocks=blocks,
        block_seconds=case.block_seconds,
        topology=case.topology,
        probed=True,
    )
    cells, fabric = launch.run_probed(job)
    return {"case": asdict(case), "fabric": fabric, "cells": cells}


def _compare(run: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """A row for each algorithm and size: predicted and measured seconds."""
    fabric = json.dumps(run["fabric"])
    for cell in run["cells"]:
        op, ranks = OPS[cell["op"]], cell["ranks"]
        root = ROOT if op.flow == "from_root" else -1
        backends = dict(cell["backends"])
        call = backends.pop(EMPTY, {"median": 0.0})["median"]
        for label, figures in backends.items():
            algorithm = label.partition(":")[2]
            bytes_ = op.tuned_size(cell["size"], ranks)
            chosen = load().explain(op.name, bytes_, fabric, root, algorithm)[0]
            if chosen["algorithm"].partition(":")[0] != algorithm:
                raise ValueError(f"{algorithm} does not offer {op.name} on {run['case']['place']}")
            bottleneck, predicted = chosen["bottleneck"], chosen["seconds"] + call
            yield {
                "place": run["case"]["place"],
                "held_out": _is_held_out(run["case"]["place"]),
                "op": op.name,
                "size": cell["size"],
                "algorithm": chosen["algorithm"],
                "slice_bytes": chosen["slice_bytes"],
                "window": chosen["window"],
                "bottleneck": None if bottleneck is None else chosen["loads"][bottleneck]["name"],
                "call": call,
                "predicted": predicted,
                "measured": figures["median"],
                "measured_p25": figures["p25"],
                "measured_p75": figures["p75"],
                "error": predicted / figures["median"] - 1,
            }


def _is_held_out(place: str) -> bool:
    return any(case.place == place for case in HELD_OUT)


def _groups(rows: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The rows of each place, then all fitted and all held out."""
    for place in dict.fromkeys(row["place"] for row in rows):
        yield place, [row for row in rows if row["place"] == place]
    for name, held_out in (("all fitted", False), ("all held out", True)):
        if group := [row for row in rows if row["held_out"] == held_out]:
            yield name, group


def _errors(group: tuple[str, list[dict[str, Any]]]) -> list[float]:
    return sorted(abs(row["error"]) for row in group[1])


def _p90(group: tuple[str, list[dict[str, Any]]]) -> float:
    errors = _errors(group)
    return errors[math.ceil(0.9 * len(errors)) - 1]


def _worst(group: tuple[str, list[dict[str, Any]]]) -> str:
    row = max(group[1], key=lambda row: abs(float(row["error"])))
    return f"{row['error']:+.0%} {row['op']} {report.size(row['size'])} {row['algorithm']}"


_SUMMARY: report.Columns = (
    ("topology", lambda group: group[0]),
    ("configurations", lambda group: str(len(group[1]))),
    ("median error", lambda group: f"{statistics.median(_errors(group)):.1%}"),
    ("90th percentile", lambda group: f"{_p90(group):.1%}"),
    ("worst", _worst),
)
_DETAILS: report.Columns = (
    ("topology", lambda row: row["place"]),
    ("collective", lambda row: row["op"]),
    ("size", lambda row: report.size(row["size"])),
    ("algorithm", lambda row: row["algorithm"]),
    ("slice x window", lambda row: f"{report.size(row['slice_bytes'])} x {row['window']}"),
    ("bottleneck", lambda row: row["bottleneck"] or ""),
    ("predicted", lambda row: report.duration(row["predicted"])),
    ("measured", lambda row: report.duration(row["measured"])),
    (
        "p25-p75",
        lambda row: "-".join(report.duration(row[f"measured_{q}"]) for q in ("p25", "p75")),
    ),
    ("error", lambda row: f"{row['error']:+.1%}"),
)


def lines(body: Mapping[str, Any]) -> list[str]:
    rows = body["rows"]
    return [report.markdown_of(_SUMMARY, _groups(rows)), report.markdown_of(_DETAILS, rows)]


def _markdown(machine: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    goal = (
        "The goals are for the held-out configurations: a median error of at most "
        f"{GOAL_MEDIAN:.0%}, a 90th percentile of at most {GOAL_P90:.0%}."
    )
    facts_line = f"{machine['time']}: {facts.describe(machine)}"
    text = ["# Predicted and measured", "", facts_line, "", goal, ""]
    return "\n".join([*text, *lines({"rows": rows})])


def _draw(path: Path, caption: str, rows: list[dict[str, Any]]) -> None:
    """Predicted over measured times, both axes logarithmic, with the band of the goal."""
    figure, axis = plt.subplots(figsize=(7, 6.4), layout="tight")
    times = [row[key] for row in rows for key in ("predicted", "measured")]
    ends = [min(times) / 1.5, max(times) * 1.5]
    axis.plot(ends, ends, color="0.4", lw=0.8)
    axis.fill_between(
        ends,
        [end * (1 - GOAL_P90) for end in ends],
        [end * (1 + GOAL_P90) for end in ends],
        color="0.5",
        alpha=0.2,
        linewidth=0,
        label=f"within {GOAL_P90:.0%}",
    )
    for index, place in enumerate(dict.fromkeys(row["place"] for row in rows)):
        here = [row for row in rows if row["place"] == place]
        axis.scatter(
            [row["measured"] for row in here],
            [row["predicted"] for row in here],
            s=24,
            color=LINES[index % len(LINES)],
            marker="s" if here[0]["held_out"] else "o",
            label=f"{place} (held out)" if here[0]["held_out"] else place,
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("measured")
    axis.set_ylabel("predicted")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_formatter(FuncFormatter(lambda seconds, _: report.duration(seconds)))
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=9)
    figure.supxlabel(caption, fontsize=7, color="0.45")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
