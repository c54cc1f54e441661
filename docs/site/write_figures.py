"""Writes the tables of figures in README.md and docs/, from benchmarks/results.

    python docs/site/write_figures.py

Each stands in a page between two comments, and a test compares it with the results files:

    <!-- table: links -->
    ...
    <!-- end of table -->

The name is one of TABLES, or a study: then its lines stand there.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from q7x2._core.units import parse_size

from benchmarks.harness import RESULTS, ROOT, report
from benchmarks.harness.inference import Paired
from benchmarks.harness.study import lines_of
from benchmarks.regress.bars import iperf_bound, rate_each_way
from benchmarks.regress.goals import CODED, FAST_GOALS, FAST_RATES
from benchmarks.studies import choices, degraded, nat, planning, wan, windows
from benchmarks.studies.train import figures as study_figures
from benchmarks.studies.train import variants_report
from benchmarks.studies.train.methods import TORCH_POWERSGD
from benchmarks.studies.train.study import OTHER_TEXT, Study
from benchmarks.studies.train.variants import at_once
from tests.faults import STUDIES as FAULT_STUDIES
from tests.faults import table as fault_table

_BUSY = 3.0  # load average per core before a run
_TABLE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.S)

# Of bars.json: the row, one of its sizes, and what README.md calls it.
_SPEED = (
    ("latency-2", "4", "all-reduce 4 B, 2 ranks, one host"),
    ("latency-4-on-2", "1K", "all-reduce 1 KiB, 4 ranks on 2 cores"),
    ("bandwidth-2", "16M", "all-reduce 16 MiB, 2 ranks, one host"),
    ("all_gather-4", "1M", "all-gather 1 MiB, 4 ranks on 2 cores"),
    ("network-4-small", "4", "all-reduce 4 B, 4 hosts, 1 Gbit/s"),
    ("network-4", "16M", "all-reduce 16 MiB, 4 hosts, 1 Gbit/s"),
    ("network-2-10gbit-64K", "64K", "all-reduce 64 KiB, 2 hosts, 10 Gbit/s"),
    ("network-2-10gbit-1M", "1M", "all-reduce 1 MiB, 2 hosts, 10 Gbit/s"),
    ("network-2-10gbit-16M", "16M", "all-reduce 16 MiB, 2 hosts, 10 Gbit/s"),
    ("racks", "16M", "all-reduce 16 MiB, 2 racks of 4 hosts, 200 Mbit/s, uplinks 50 Mbit/s"),
    ("racks-interleaved", "16M", "the same, with neighbour ranks in different racks"),
    ("links", "16M", "all-reduce 16 MiB, 4 hosts at 20 Mbit/s, private 100 Mbit/s links to one"),
)
# Of train.json: the method of the part "speed", the same one in the part with its price, and the
# hook that README.md names. All compress from the first step, but 1-bit Adam.
_HOOKS = (
    ("int8", "int8", '`q7x2.Quantize("int8")`'),
    ("", "hadamard+int4:g=128", '`q7x2.Quantize("hadamard+int4:g=128")`'),
    ("int4", "int4:g=128", '`q7x2.Quantize("int4:g=128")`'),
    ("PowerSGD 8", at_once("PowerSGD 8"), "`q7x2.PowerSGD(rank=8)`"),
    ("PowerSGD 4", at_once("PowerSGD 4"), "`q7x2.PowerSGD(rank=4)`"),
    (TORCH_POWERSGD, at_once(TORCH_POWERSGD), "PyTorch's PowerSGD hook, rank 4, over Gloo"),
    ("", "1-bit Adam", "`q7x2.optim.OneBitAdam(ddp)`"),
    ("1-bit SGD", at_once("1-bit SGD"), "`q7x2.OneBit()`"),
    ("top 1 %", at_once("top 1 %"), "`q7x2.TopK(0.01)`"),
)
# Those that by default begin with uncompressed steps.
_LATE = (
    ("PowerSGD 8", "`PowerSGD(rank=8)`"),
    ("PowerSGD 4", "`PowerSGD(rank=4)`"),
    ("1-bit SGD", "`OneBit`"),
    ("top 1 %", "`TopK`"),
)


def main() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        old = page.read_text()
        new = with_tables(old)
        if new != old:
            page.write_text(new)
            print(f"written: {page.relative_to(ROOT)}")


def with_tables(page: str) -> str:
    """The text of `page`, each of its tables as the results files have it now."""

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        return f"{match[1]}{TABLES[name]() if name in TABLES else study_lines(name)}{match[3]}"

    return _TABLE.sub(table, page)


def study_lines(name: str) -> str:
    """What a study says about its results file; the file may have a suffix, such as `late-2`."""
    module = name.partition("-")[0]
    package = "tests.faults" if module in FAULT_STUDIES else "benchmarks.studies"
    study = importlib.import_module(f"{package}.{module}")
    lines = lines_of(study, json.loads((RESULTS / f"{name}.json").read_text()))
    wrapped = [
        part for line in lines for part in textwrap.wrap(line, 110, subsequent_indent="    ")
    ]
    return "```text\n" + "\n".join(wrapped) + "\n```\n"


def _speed() -> str:
    head = ("what", "q7x2", "Gloo", "faster", "CPU q7x2", "CPU Gloo")
    rows = _bars()
    lines = []
    for name, size, what in _SPEED:
        figures = next(each for each in rows[name]["sizes"] if each["size"] == parse_size(size))
        keys = ("time", "against_time", "cpu_seconds", "against_cpu_seconds")
        ours, theirs, *cpu = (report.duration(figures[key]) for key in keys)
        lines.append([what, ours, theirs, _times(figures["ratio"]), *cpu])
    return report.markdown(head, lines) + note_on_load(rows[name] for name, _, _ in _SPEED)


def _links() -> str:
    head = ("link", "iperf3, each way", "size", "q7x2", "Gloo", "faster (by block)", "of iperf3")
    rows = _bars()
    lines, used = [], []
    for rate in FAST_RATES:
        for size in FAST_GOALS:
            row = rows[f"network-2-{rate}-{size}"]
            used.append(row)
            low, high = row["spread"]
            lines.append(
                [
                    rate.replace("gbit", " Gbit/s"),
                    report.bits(bound) if (bound := iperf_bound(row)) else "not measured",
                    report.size(row["size"]),
                    report.duration(row["time"]),
                    report.duration(row["against_time"]),
                    f"{row['ratio']:.2f} x ({low:.2f}-{high:.2f})",
                    f"{rate_each_way(row) / bound:.0%}" if bound else "",
                ]
            )
    return report.markdown(head, lines) + note_on_load(used)


def note_on_load(rows: Iterable[dict[str, Any]]) -> str:
    """A warning that names the rows that were measured while others used the machine."""
    rows = list(rows)
    busy = [r for r in rows if r["machine"]["load_average"][0] > _BUSY * r["machine"]["cores"]]
    if not busy:
        return ""
    names = ", ".join(f"`{row['bar']['name']}`" for row in busy)
    if len(busy) == len(rows):
        names = "all rows"
    return f"\n**Provisional**, because the machine was busy with other work: {names}.\n"


def _codecs() -> str:
    head = ("codec", "100 Mbit/s", "1 Gbit/s")
    rows = _bars()
    names = {codec: codec for codec in CODED} | {"topk": "topk:0.01"}
    lines = [
        [f"`{codec}`", *(_times(rows[f"{name}-{rate}"]["ratio"]) for rate in ("100mbit", "1gbit"))]
        for name, codec in names.items()
    ]
    return report.markdown(head, lines)


def _hooks() -> str:
    head = (
        "hook",
        "faster at 100 Mbit/s",
        "faster at 1 Gbit/s",
        "price: final loss on another text",
        "seeds",
    )
    study = Study(RESULTS / "train.json")
    by_rate = [
        {each.label: each for each in study_figures.speeds(study, rate)}
        for rate in ("100mbit", "1gbit")
    ]
    lines = []
    for label, priced, hook in _HOOKS:
        speeds = [
            (_times(found.sooner) if found.sooner else "never") if found else "not measured"
            for found in (each.get(label) for each in by_rate)
        ]
        paired, seeds = _price(study, priced)
        lines.append([hook, *speeds, study_figures.interval(paired), str(seeds)])
    late = ", ".join(f"{hook} {_price(study, label)[0].mean:+.4f}" for label, hook in _LATE)
    return (
        report.markdown(head, lines)
        + "\nPrices with the defaults, which send the first steps of a training uncompressed: "
        + f"{late}.\n"
    )


def _price(study: Study, label: str) -> tuple[Paired, int]:
    """In final loss on a text that no default was chosen by, and over how many seeds.

    Against the same optimizer without compression.
    """
    of = study_figures.losses(study, "held-out-study", change=OTHER_TEXT)
    base = variants_report.base_of(label)
    paired = study_figures.difference(of, label, base)
    assert paired is not None, f"{label} was not trained on {OTHER_TEXT}"
    return paired, len(set(of[label]) & set(of[base]))


def _one_line() -> str:
    study = Study(RESULTS / "train.json")
    speeds = {each.label: each for each in study_figures.speeds(study, "100mbit")}
    (int8, _), (powersgd, _) = _price(study, "int8"), _price(study, at_once("PowerSGD 4"))
    sure = "too small to measure" if int8.low <= 0 <= int8.high else "different from zero"
    return (
        "Over 100 Mbit/s the `int8` line trains a small GPT to the same loss "
        f"{speeds['int8'].sooner:.1f} times faster than Gloo.\n"
        f"Its price in final loss is {int8.mean:+.4f}, which is {sure} "
        f"(95 % interval: {int8.low:+.4f} to {int8.high:+.4f}).\n"
        f"`q7x2.PowerSGD(rank=4)` is {speeds['PowerSGD 4'].sooner:.0f} times faster than Gloo, "
        f"and its price is {powersgd.mean:+.3f}.\n"
    )


def _missed() -> str:
    def names(verdict: bool | str) -> str:
        rows = [row for row in _bars().values() if row.get("reached") == verdict]
        return ", ".join(
            f"`{row['bar']['name']}` ({row['ratio']:.2f}x of {row['goal']})" for row in rows
        )

    text = f"Figures that miss their goal: {names(False) or 'none'}.\n"
    if undecided := names(report.UNDECIDED):
        text += f"The measurement could not decide: {undecided}.\n"
    return text


def _first_table(report_file: str, section: str = "") -> str:
    """The first table of a section of a report in results/."""
    text = (RESULTS / report_file).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2]
    return text[text.index("\n| ") + 1 :].partition("\n\n")[0].rstrip("\n") + "\n"


def _held_out() -> str:
    return variants_report.held_out(Study(RESULTS / "train.json"))


def _rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


def _table_of(columns: report.Columns, name: str) -> str:
    return report.markdown_of(columns, _rows(name))


def _probe() -> str:
    """How long the start-up probes of the study `model` took."""
    longest: dict[str, float] = {}
    for run in json.loads((RESULTS / "model.json").read_text())["runs"]:
        place, seconds = run["case"]["place"], run["fabric"]["made"]["seconds"]
        longest[place] = max(seconds, longest.get(place, 0.0))
    lines = [(place, report.duration(seconds)) for place, seconds in longest.items()]
    return report.markdown(("network", "the longest probe"), lines)


def _right(name: str, key: str, of: str) -> str:
    """How often a test of the diagnoses was right."""
    lines = [[row[key], f"{row['right']} of {row[of]}"] for row in _rows(name)]
    return report.markdown((key, "right"), lines)


TABLES: dict[str, Callable[[], str]] = {
    "speed": _speed,
    "missed": _missed,
    "links": _links,
    "codecs": _codecs,
    "hooks": _hooks,
    "one-line": _one_line,
    "study-goals": partial(_first_table, "train.md", "Goals"),
    "fsdp": partial(_first_table, "train.md", "FSDP2"),
    "fsdp-losses": partial(_first_table, "train.md", "FSDP2: losses"),
    "cadence": partial(_first_table, "train.md", "Cadence"),
    "cadence-gpt": partial(_first_table, "train.md", "Cadence: losses of the GPT"),
    "cadence-digits": partial(_first_table, "train.md", "Cadence: losses of the CNN on digits"),
    "model": partial(_first_table, "model.md"),
    "variants": partial(_first_table, "train.md", "Options of hooks, one at a time"),
    "held-out-study": _held_out,
    "long": partial(_first_table, "train.md", "A long training"),
    "planning": partial(_table_of, planning.COLUMNS, "planning"),
    "release": lambda: fault_table.summary(_rows("faults")),
    "probe": _probe,
    "causes": partial(_right, "causes", "cause", "runs"),
    "verdicts": partial(_right, "verdicts", "kind", "experiments"),
    "choices": partial(_table_of, choices.COLUMNS, "choices"),
    "degraded": partial(_table_of, degraded.COLUMNS, "degraded"),
    "nat": partial(_table_of, nat.COLUMNS, "nat"),
    "windows": partial(_table_of, windows.COLUMNS, "windows"),
    "wan": lambda: wan.table(_rows("wan")),
}


def _bars() -> dict[str, dict[str, Any]]:
    rows = _rows("bars")
    return {row["bar"]["name"]: row for row in rows if "time" in row}


def _times(ratio: float) -> str:
    """With fewer decimals the larger it is."""
    return f"{ratio:.{0 if ratio >= 10 else 1 if ratio >= 2 else 2}f} x"


if __name__ == "__main__":
    main()
