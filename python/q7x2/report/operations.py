"""The sections of the report about operations, and its first lines."""

from __future__ import annotations

import math
from html import escape

from q7x2._core.units import bytes_text, percent_text, time_text
from q7x2.ledger.summary import PHASES, Kind, Summary
from q7x2.report.axes import Axes
from q7x2.report.charts import bar, bars, columns, legend, section, table

_TEXTS = {
    "waited": "waiting for messages",
    "copy": "copying",
    "reduce": "reducing",
    "encode": "encoding",
    "decode": "decoding",
    "other": "waiting for a thread",
}
# A table that has more ranks, or rows, than that shows the largest.
_MOST_RANKS = 64
_MOST_ROWS = 100


def sections(summary: Summary, axes: Axes) -> list[str]:
    """The sections about operations; empty where there is nothing to show."""
    return [
        section(
            "Time by phase",
            "Seconds of collectives and messages per second, as the mean over the ranks. "
            "Operations that overlap add up, so a bar may exceed 1.",
            _phases_over_time(summary, axes),
        ),
        section(
            "Time by rank",
            "All operations of a rank together.",
            _phases_by_rank(summary, axes),
        ),
        section(
            "Bytes by kind and link",
            "What all ranks sent, without headers.",
            _bytes_by_kind(summary, axes),
        ),
        section(
            "Predicted and measured",
            "One dot per kind of operation: the planner's time and the mean of those measured. "
            "Above the line, operations took longer than predicted.",
            _predictions(summary, axes),
        ),
        section(
            "Slowest peers",
            "For whose messages each rank waited, and how long. A row waits for a column.",
            _slowest_peers(summary, axes),
        ),
        section("Operations", "By the time that they took together.", _operations(summary)),
        section("Ranks", "Hosts, clocks and losses.", _ranks(summary)),
    ]


def tiles(summary: Summary) -> str:
    """Figures of the whole job."""
    ranks = len(summary.ranks)
    busy = sum(summary.phase(phase) for phase in PHASES)
    network = sum(each.sent_network for each in summary.ranks)
    memory = sum(each.sent_memory for each in summary.ranks)
    ratio = summary.predicted_ratio()
    lost = sum(each.lost for each in summary.ranks)
    operations = sum(each.operations for each in summary.ranks)
    shown = [
        ("time covered", time_text(summary.seconds)),
        ("operations per rank", f"{operations / ranks:,.0f}"),
        ("in operations", percent_text(busy, ranks * summary.seconds)),
        ("of that, waiting", percent_text(summary.phase("waited"), busy)),
        ("over networks", bytes_text(network)),
        ("through memory", bytes_text(memory)),
        ("measured / predicted", "—" if ratio is None else f"{ratio:.2f}"),
        ("operations lost", f"{lost:,}"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in shown)
        + "</div>"
    )


def failures(summary: Summary) -> str:
    """What ended groups."""
    rows = "".join(f"<li>{escape(text)}</li>" for text in summary.failures)
    return f'<section class="failed"><h2>Failures</h2><ul>{rows}</ul></section>' if rows else ""


def _phases_over_time(summary: Summary, axes: Axes) -> str:
    width = summary.seconds / len(summary.bins)
    titles = [
        f"{time_text(index * width)} to {time_text((index + 1) * width)}: "
        + ", ".join(f"{_TEXTS[phase]} {each[phase]:.3f}" for phase in PHASES if each[phase] > 0)
        for index, each in enumerate(summary.bins)
    ]
    below = ("0", time_text(summary.seconds / 2), time_text(summary.seconds))
    colours = {phase: _TEXTS[phase] for phase in reversed(PHASES)}
    return legend(colours) + columns(
        summary.bins, PHASES, titles=titles, below=below, axes=axes, name="phases"
    )


def _phases_by_rank(summary: Summary, axes: Axes) -> str:
    most = max(sum(each.phases.values()) for each in summary.ranks)
    longest = axes.reach("time by rank", most) or 1
    rows = []
    for each in summary.ranks[:_MOST_RANKS]:
        total = sum(each.phases.values())
        parts = [(phase, each.phases[phase] / longest) for phase in PHASES]
        rows.append(bar(f"rank {each.rank}", parts, time_text(total), _TEXTS))
    return bars(rows)


def _bytes_by_kind(summary: Summary, axes: Axes) -> str:
    totals: dict[str, list[int]] = {}
    for kind in summary.kinds:
        name = f"{kind.operation} as {kind.codec}" if kind.codec else kind.operation
        total = totals.setdefault(name, [0, 0])
        total[0] += kind.network
        total[1] += kind.memory
    ordered = sorted(totals.items(), key=lambda item: -sum(item[1]))
    most = float(max((sum(total) for total in totals.values()), default=0))
    if most == 0:
        return ""
    most = axes.reach("bytes by kind", most)
    rows = [
        bar(
            name,
            [("network", network / most), ("memory", memory / most)],
            bytes_text(network + memory),
            {},
        )
        for name, (network, memory) in ordered
        if network + memory > 0
    ]
    colours = {"network": "network (UCX)", "memory": "shared memory"}
    return legend(colours) + bars(rows)


def _predictions(summary: Summary, axes: Axes) -> str:
    dots = []
    for kind in summary.kinds:
        counted = len(kind.durations)
        if kind.predicted > 0 and kind.took_predicted > 0 and counted > 0:
            dots.append(
                (kind, kind.predicted / counted * 1e-9, kind.took_predicted / counted * 1e-9)
            )
    if not dots:
        return ""
    values = [value for _, *pair in dots for value in pair]
    least, largest = axes.begin("predictions", min(values)), axes.reach("predictions", max(values))
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(largest))
    high = max(high, low + 1)

    def at(value: float) -> float:
        return 100 * (math.log10(value) - low) / (high - low)

    marks = "".join(
        f'<i style="left:{at(predicted):.2f}%;bottom:{at(measured):.2f}%" title="'
        f"{escape(_kind_text(kind))}: predicted {time_text(predicted)}, measured "
        f'{time_text(measured)}"></i>'
        for kind, predicted, measured in dots
    )
    ticks = [time_text(10.0**power) for power in range(low, high + 1)]
    across = "".join(f"<span>{tick}</span>" for tick in ticks)
    up = "".join(f"<span>{tick}</span>" for tick in reversed(ticks))
    line = (
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        '<line x1="0" y1="100" x2="100" y2="0"/></svg>'
    )
    return (
        f'<div class="scatter"><div class="up">{up}</div><div class="field">{line}{marks}</div>'
        f'<div class="across">{across}</div>'
        '<div class="name">predicted; measured upwards</div></div>'
    )


def _slowest_peers(summary: Summary, axes: Axes) -> str:
    ranks = [each.rank for each in summary.ranks]
    most = max(summary.waited_for.values(), default=0.0)
    if most == 0 or len(ranks) < 2:
        return ""
    by_peer = {
        peer: sum(seconds for (_, to), seconds in summary.waited_for.items() if to == peer)
        for peer in ranks
    }
    slowest = sorted(ranks, key=lambda rank: -by_peer[rank])[:8]
    longest = axes.reach("slowest peers", by_peer[slowest[0]]) or 1
    most = axes.reach("who waited for whom", most)
    drawn = bars(
        [
            bar(
                f"rank {rank}",
                [("waited", by_peer[rank] / longest)],
                time_text(by_peer[rank]),
                _TEXTS,
            )
            for rank in slowest
            if by_peer[rank] > 0
        ]
    )
    if len(ranks) > _MOST_RANKS:
        return drawn
    head = "".join(f"<th>{peer}</th>" for peer in ranks)
    rows = []
    for rank in ranks:
        cells = []
        for peer in ranks:
            seconds = summary.waited_for.get((rank, peer), 0.0)
            title = f"rank {rank} waited {time_text(seconds)} for rank {peer}"
            cells.append(f'<td style="--share:{seconds / most:.3f}" title="{title}"></td>')
        rows.append(f"<tr><th>{rank}</th>{''.join(cells)}</tr>")
    return (
        f'{drawn}<div class="wide"><table class="heat"><tr><th></th>{head}</tr>{"".join(rows)}'
        "</table></div>"
    )


def _kind_text(kind: Kind) -> str:
    parts = [kind.operation, bytes_text(kind.bytes), kind.plan, kind.codec]
    return " ".join(part for part in parts if part)


def _operations(summary: Summary) -> str:
    head = ["group", "operation", "up to", "plan", "codec", "count", "together", "median", "p99"]
    head += ["waiting", "measured / predicted"]
    rows = []
    for kind in summary.kinds[:_MOST_ROWS]:
        together = kind.seconds()
        ratio = f"{kind.took_predicted / kind.predicted:.2f}" if kind.predicted else ""
        count = f"{len(kind.durations):,}" + (f" + {kind.failed} failed" if kind.failed else "")
        cells = [
            kind.group,
            kind.operation,
            bytes_text(kind.bytes) if kind.bytes else "",
            kind.plan,
            kind.codec,
            count,
            time_text(together),
            time_text(kind.quantile(0.5)),
            time_text(kind.quantile(0.99)),
            percent_text(kind.waited * 1e-9, together),
            ratio,
        ]
        rows.append(cells)
    left_out = len(summary.kinds) - _MOST_ROWS
    note = f'<p class="note">{left_out} more kinds are left out.</p>' if left_out > 0 else ""
    return table(head, rows) + note


def _ranks(summary: Summary) -> str:
    head = ["rank", "host", "operations", "lost", "clock right within"]
    rows = []
    for each in summary.ranks:
        clock = "unknown" if each.uncertainty_ns is None else time_text(each.uncertainty_ns * 1e-9)
        cells = [str(each.rank), each.host, f"{each.operations:,}", f"{each.lost:,}", clock]
        rows.append(cells)
    return table(head, rows)
