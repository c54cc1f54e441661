"""The study's report in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from benchmarks.harness import facts, inference
from benchmarks.harness.report import duration
from benchmarks.harness.report import markdown as markdown_table
from benchmarks.studies.train import (
    cadence_report,
    figures,
    sharded_report,
    variants_report,
    wire,
)
from benchmarks.studies.train.methods import POWERSGD, TORCH_POWERSGD, UNCOMPRESSED
from benchmarks.studies.train.pictures import rates_of
from benchmarks.studies.train.study import OURS, PARTS, RANKS, RECIPES, TASKS, Study

_SOONER = {"100mbit": 10.0, "1gbit": 2.5}  # what the best hook must reach
_SHORTER = 2.5  # what PowerSGD 4 must reach
_POWERSGD_RATES = ("100mbit", "1gbit")


def markdown(study: Study, pictures: Sequence[str]) -> str:
    where = _by_part(study, "commit", "Commits") + _by_part(study, "cpu", "Processors")
    sections = [
        "# Communication hooks: speed and accuracy\n\n"
        f"`python -m benchmarks train` on {facts.describe(study.machine)}. {RANKS} ranks, one "
        f"per virtual host if a rate is named.{where}\n",
        _goals(study),
        *(_speed(study, rate) for rate in rates_of(study, "speed")),
        _powersgd(study),
        *(_accuracy(study, task) for task in TASKS if study.of("accuracy", task=task)),
        _wire(study),
        _overlap(study),
        _compute_bound(study),
        _hook_cpu(study),
        *variants_report.sections(study),
        *sharded_report.sections(study),
        *cadence_report.sections(study),
        "".join(f"![]({name})\n\n" for name in pictures),
    ]
    return "\n".join(section for section in sections if section)


def _by_part(study: Study, key: str, title: str) -> str:
    """What cells have as `key`, such as their commit, where that is not the same for all."""
    of_parts = {
        part: sorted({cell[key] for cell in cells if key in cell})
        for part in PARTS
        if (cells := study.of(part))
    }
    if len({value for values in of_parts.values() for value in values}) < 2:
        return ""
    parts = (f"{part} {', '.join(values)}" for part, values in of_parts.items())
    return f" {title} by part: {'; '.join(parts)}."


def _goals(study: Study) -> str:
    rows = [*_speed_goals(study), *_accuracy_goals(study), *_other_goals(study)]
    for part in (sharded_report, cadence_report, variants_report):
        rows += part.goals(study)
    marks = {True: "reached", False: "missed"}
    lines = [(what, goal, measured, marks[reached]) for what, goal, measured, reached in rows]
    if not lines:
        return ""
    return "## Goals\n\n" + markdown_table(("what", "goal", "measured", ""), lines)


def _speed_goals(study: Study) -> Iterable[figures.Goal]:
    what = "PowerSGD 4 beyond compute against PyTorch's on Gloo"
    for rate in rates_of(study, "powersgd"):
        if rate in _POWERSGD_RATES:
            where = f"{rate}, {RECIPES['powersgd']['batch']} windows per rank"
            ratio = figures.ratio_beyond_long(study, rate, POWERSGD)
            yield figures.shorter_goal(f"{what}, {where}", _SHORTER, ratio)
    for rate in rates_of(study, "speed"):
        speeds = {s.label: s for s in figures.speeds(study, rate)}
        if rate in _POWERSGD_RATES and {POWERSGD, TORCH_POWERSGD} <= set(speeds):
            where = f"{rate}, {RECIPES['speed']['batch']} window per rank"
            ratio = figures.ratio_beyond(study, rate, POWERSGD, TORCH_POWERSGD)
            yield figures.shorter_goal(f"{what}, {where}", _SHORTER, ratio)
        ours = [s for label in OURS if (s := speeds.get(label)) and s.sooner]
        if rate in _SOONER and ours:
            best = max(ours, key=lambda s: s.sooner or 0)
            yield (
                f"time to the baseline's final loss, {rate}: {best.label}",
                f"{_SOONER[rate]:g} x sooner",
                f"{best.sooner:.2f} x",
                (best.sooner or 0) >= _SOONER[rate],
            )


def _accuracy_goals(study: Study) -> Iterable[figures.Goal]:
    for task in TASKS:
        if not study.of("accuracy", task=task):
            continue
        of = figures.losses(study, "accuracy", task=task)
        against = figures.difference(of, POWERSGD, TORCH_POWERSGD)
        if against:
            yield (
                f"final loss of PowerSGD 4 against PyTorch's, {task}",
                "not worse",
                figures.interval(against),
                against.low <= 0,
            )
        results = [r for r in figures.accuracies(study, task) if r.label in OURS]
        prices = {r.label: r.paired for r in results}
        yield figures.losses_goal(f"final loss of each hook, {task}", prices)


def _other_goals(study: Study) -> Iterable[figures.Goal]:
    if bound := [c["label"] for c in study.of("compute-bound") if c["label"] in OURS]:
        worst = max(bound, key=lambda label: figures.slower(study, label)[0])
        slower, low, high = figures.slower(study, worst)
        yield (
            f"if compute dominates, the slowest hook: {worst}",
            "2 % slower than q7x2 at most",
            f"{slower - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})",
            slower <= 1.02,
        )
    if cells := study.of("overlap"):
        least = min(cells, key=lambda c: c["hidden_seconds"] / c["ideal_seconds"])
        share = least["hidden_seconds"] / least["ideal_seconds"]
        yield (
            f"least hidden communication: {least['label']}, {least['rate']}",
            "80 % of what can be hidden",
            f"{share:.0%}",
            share >= 0.8,
        )
    differences = [
        (abs(s.payload / s.expected - 1), s.label, rate)
        for rate in rates_of(study, "speed")
        for s in figures.speeds(study, rate)
        if s.expected and s.label in (*OURS, UNCOMPRESSED)
    ]
    if differences:
        largest, label, rate = max(differences)
        yield (
            f"bytes on the wire against the formula, the largest difference: {label}, {rate}",
            "2 %",
            f"{largest:.1%}",
            largest <= 0.02,
        )
    if cells := study.of("hook-cpu"):
        events = sum(c["events"] for c in cells)
        beside = sum(c["events_while_the_gil_was_held"] for c in cells)
        yield (
            "phases and collectives of a step while another thread holds the GIL throughout",
            "all",
            f"{beside} of {events}",
            beside == events,
        )


def _speed(study: Study, rate: str) -> str:
    speeds = figures.speeds(study, rate)
    cell = study.of("speed", rate=rate)[0]
    dense = next((s for s in speeds if s.label == UNCOMPRESSED), speeds[0])
    return figures.section(
        f"Speed, {rate}",
        f"A GPT of {cell['parameters']:,} parameters, {cell['steps']} steps of the baseline, all "
        f"methods in turns of {cell['turn']} steps. Forward and backward without communication "
        f"take {duration(dense.compute)}; the dense all-reduce takes "
        f"{dense.beyond[0] / dense.compute:.1f} times as long. Beyond compute: the medians over "
        "rounds, and their 95 % intervals. Loss is that of held-out text. PyTorch's PowerSGD hook "
        "begins after two dense steps, the fewest it takes.",
        speeds,
        (
            ("method", lambda s: s.label),
            ("step", lambda s: duration(s.step)),
            ("beyond compute", lambda s: figures.milliseconds(*s.beyond)),
            ("bytes per step and host", lambda s: f"{s.link_bytes / 1e3:.0f} kB"),
            (f"loss after {cell['steps']} steps", lambda s: f"{s.final_loss:.4f}"),
            (
                "to the baseline's final loss",
                lambda s: f"{s.reached:.3g} s" if s.reached else "not reached",
            ),
            ("sooner", lambda s: f"{s.sooner:.2f} x" if s.sooner else "-"),
        ),
    )


def _accuracy(study: Study, task: str) -> str:
    recipe = RECIPES["accuracy"][task]
    accuracy = [("accuracy", lambda r: f"{r.accuracy:.1%}")] if task == "digits" else []
    return figures.section(
        f"Accuracy, {task}",
        f"{recipe['steps']} steps; the mean held-out loss of the last {recipe['last']} "
        "evaluations. Differences are from uncompressed training with the same optimizer, paired "
        "by seed (the same first weights, the same batches). p differs: paired t-test, two-sided, "
        "corrected for the "
        f"number of methods (Holm). The bar: {figures.BAR_IN_WORDS}.",
        figures.accuracies(study, task),
        (
            ("method", lambda r: r.label),
            ("seeds", lambda r: str(r.seeds)),
            ("loss", lambda r: f"{r.loss:.4f}"),
            ("spread", lambda r: f"{r.spread:.4f}" if r.seeds > 1 else "-"),
            *accuracy,
            ("difference (95 %)", lambda r: figures.interval(r.paired)),
            ("p differs", lambda r: f"{r.p_differs:.3f}" if r.paired else "-"),
            ("", lambda r: r.verdict),
        ),
    )


def _wire(study: Study) -> str:
    def difference(s: figures.Speed) -> str:
        return f"{s.payload / s.expected - 1:+.1%}" if s.expected else "depends on the gradients"

    return figures.section(
        "Bytes on the wire",
        "Link: the bytes that a host sends per step, by the counters of its NIC. Payload: the same "
        f"without {wire.HEADER_BYTES} bytes of Ethernet, IPv4 and TCP header per packet. Formula: "
        f"2 (n - 1) / n = {2 * (RANKS - 1) / RANKS:g} times the message, which follows from the "
        "shapes of the parameters. The difference is due to headers of messages and the backend's "
        "control messages, which matter if messages are small.",
        [(r, s) for r in rates_of(study, "speed") for s in figures.speeds(study, r)],
        (
            ("rate", lambda row: row[0]),
            ("method", lambda row: row[1].label),
            ("link", lambda row: f"{row[1].link_bytes:,.0f}"),
            ("payload", lambda row: f"{row[1].payload:,.0f}"),
            ("formula", lambda row: f"{row[1].expected:,.0f}" if row[1].expected else "-"),
            ("difference", lambda row: difference(row[1])),
        ),
    )


def _overlap(study: Study) -> str:
    recipe = RECIPES["overlap"]
    return figures.section(
        "Overlap",
        f"{recipe['layers']} layers, {recipe['batch']} windows per rank, buckets of "
        f"{recipe['bucket_mb']:g} MB; means over ranks and {recipe['steps']} steps. "
        "Communication: the time in which a collective was in flight. Hidden: the part of it "
        "before the end of backward. An ideal schedule sends each bucket as soon as it is "
        "complete, without a pause, and computes in no time.",
        study.of("overlap"),
        (
            ("rate", lambda cell: cell["rate"]),
            ("method", lambda cell: cell["label"]),
            ("communication", lambda cell: duration(cell["communication_seconds"])),
            ("hidden", lambda cell: duration(cell["hidden_seconds"])),
            ("ideal", lambda cell: duration(cell["ideal_seconds"])),
            ("share", lambda cell: f"{cell['hidden_seconds'] / cell['ideal_seconds']:.0%}"),
        ),
    )


def _powersgd(study: Study) -> str:
    def beyond(cell: figures.Cell) -> str:
        return figures.milliseconds(*inference.median_interval(figures.beyond_compute(cell)))

    def ratio(cell: figures.Cell) -> str:
        return figures.times(*figures.ratio_beyond_long(study, cell["rate"], cell["label"]))

    recipe = RECIPES["powersgd"]
    return figures.section(
        "PowerSGD beside a longer backward",
        f"{recipe['batch']} windows per rank; single steps in turns, {recipe['steps']} of each "
        "method. PyTorch's hook has one bucket, because it crashes on Gloo with several; ratios "
        "are of neighbouring steps.",
        [cell for rate in rates_of(study, "powersgd") for cell in study.of("powersgd", rate=rate)],
        (
            ("rate", lambda cell: cell["rate"]),
            ("method", lambda cell: cell["label"]),
            ("compute", lambda cell: duration(median(cell["compute"]))),
            ("beyond compute", beyond),
            ("shorter than PyTorch's", ratio),
        ),
    )


def _compute_bound(study: Study) -> str:
    cells = study.of("compute-bound")
    if not cells:
        return ""
    slower = {cell["label"]: figures.slower(study, cell["label"]) for cell in cells}
    recipe = RECIPES["compute-bound"]
    return figures.section(
        "Where compute dominates",
        f"{recipe['batch']} windows per rank, {cells[0]['rate']}: forward and backward take "
        f"{duration(median(cells[0]['compute']))} without communication. Single steps in turns, "
        f"{recipe['steps']} of each method; ratios of neighbours, their median and its 95 % "
        "interval.",
        cells,
        (
            ("method", lambda cell: cell["label"]),
            ("step", lambda cell: duration(median(cell["seconds"]))),
            (f"against {UNCOMPRESSED}", lambda cell: f"{slower[cell['label']][0] - 1:+.1%}"),
            (
                "95 %",
                lambda cell: " to ".join(f"{each - 1:+.1%}" for each in slower[cell["label"]][1:]),
            ),
        ),
    )


def _hook_cpu(study: Study) -> str:
    def phases(cell: figures.Cell) -> str:
        return ", ".join(f"{phase} {1e3 * s:.1f}" for phase, s in cell["cpu_seconds"].items())

    cells = study.of("hook-cpu")
    if not cells:
        return ""
    return figures.section(
        "CPU time of the hook",
        f"{cells[0]['parameters']:,} parameters; milliseconds per step and rank. Thread: the "
        "phases of the hook's own thread. Process: the CPU time with communication minus that of "
        "forward and backward alone, so it includes what the process group does (sending, "
        "summing, coding). "
        "Without the GIL: another thread takes the GIL in backward and holds it for two seconds; "
        "the column counts the phases and collectives that ended meanwhile.",
        cells,
        (
            ("method", lambda cell: cell["label"]),
            ("phases", phases),
            ("thread", lambda cell: f"{1e3 * sum(cell['cpu_seconds'].values()):.1f}"),
            ("process", lambda cell: f"{1e3 * cell['process_cpu_seconds']:.1f}"),
            (
                "without the GIL",
                lambda cell: f"{cell['events_while_the_gil_was_held']} of {cell['events']}",
            ),
        ),
    )
