"""The page of ``q7x2 report``: HTML with its styles inside, without scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from q7x2._ledger_summary import PHASES, Kind, Summary
from q7x2._report_style import STYLE

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


def page(summary: Summary) -> str:
    """Return the whole page."""
    sections = [
        _tiles(summary),
        _failures(summary),
        _section(
            "Time by phase",
            "Seconds of collectives and messages per second, as the mean over the ranks. "
            "Operations that overlap add up, so a bar may exceed 1.",
            _phases_over_time(summary),
        ),
        _section(
            "Time by rank",
            "All operations of a rank together.",
            _phases_by_rank(summary),
        ),
        _section(
            "Bytes by kind and link",
            "What all ranks sent, without headers.",
            _bytes_by_kind(summary),
        ),
        _section(
            "Predicted and measured",
            "One dot per kind of operation: the planner's time and the mean of those measured. "
            "Above the line, operations took longer than predicted.",
            _predictions(summary),
        ),
        _section(
            "Slowest peers",
            "For whose messages each rank waited, and how long. A row waits for a column.",
            _slowest_peers(summary),
        ),
        _section("Operations", "By the time that they took together.", _operations(summary)),
        _section("Ranks", "Hosts, clocks and losses.", _ranks(summary)),
    ]
    facts = summary.facts
    title = f"q7x2 report: {len(summary.ranks)} ranks, {_seconds(summary.seconds)}"
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head><body>\n<main>\n<h1>{escape(title)}</h1>\n"
        f'<p class="note">q7x2 {escape(facts["q7x2"])}, torch {escape(facts["torch"])}, '
        f"{escape(facts['processor'] or facts['machine'])}</p>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def _section(title: str, note: str, body: str) -> str:
    if not body:
        return ""
    return f'<section><h2>{title}</h2><p class="note">{note}</p>\n{body}</section>'


def _tiles(summary: Summary) -> str:
    ranks = len(summary.ranks)
    busy = sum(summary.phase(phase) for phase in PHASES)
    network = sum(each.sent_network for each in summary.ranks)
    memory = sum(each.sent_memory for each in summary.ranks)
    ratio = summary.predicted_ratio()
    lost = sum(each.lost for each in summary.ranks)
    operations = sum(each.operations for each in summary.ranks)
    tiles = [
        ("time covered", _seconds(summary.seconds)),
        ("operations per rank", f"{operations / ranks:,.0f}"),
        ("in operations", _percent(busy, ranks * summary.seconds)),
        ("of that, waiting", _percent(summary.phase("waited"), busy)),
        ("over networks", _bytes(network)),
        ("through memory", _bytes(memory)),
        ("measured / predicted", "—" if ratio is None else f"{ratio:.2f}"),
        ("operations lost", f"{lost:,}"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in tiles)
        + "</div>"
    )


def _failures(summary: Summary) -> str:
    rows = "".join(f"<li>{escape(text)}</li>" for text in summary.failures)
    return f'<section class="failed"><h2>Failures</h2><ul>{rows}</ul></section>' if rows else ""


def _legend() -> str:
    keys = "".join(
        f'<span><i class="{phase}"></i>{_TEXTS[phase]}</span>' for phase in reversed(PHASES)
    )
    return f'<div class="legend">{keys}</div>'


def _phases_over_time(summary: Summary) -> str:
    highest = _round_up(max((sum(each.values()) for each in summary.bins), default=0) or 1)
    width = summary.seconds / len(summary.bins)
    columns = []
    for index, each in enumerate(summary.bins):
        parts = "".join(
            f'<i class="{phase}" style="height:{100 * each[phase] / highest:.2f}%"></i>'
            for phase in reversed(PHASES)
            if each[phase] > 0
        )
        title = f"{_seconds(index * width)} to {_seconds((index + 1) * width)}: " + ", ".join(
            f"{_TEXTS[phase]} {each[phase]:.3f}" for phase in PHASES if each[phase] > 0
        )
        columns.append(f'<div title="{title}">{parts}</div>')
    return (
        f'{_legend()}<div class="chart"><div class="axis"><span>{highest:g}</span>'
        f'<span>{highest / 2:g}</span><span>0</span></div><div class="columns">'
        f'{"".join(columns)}</div></div><div class="times"><span>0</span>'
        f"<span>{_seconds(summary.seconds / 2)}</span>"
        f"<span>{_seconds(summary.seconds)}</span></div>"
    )


def _phases_by_rank(summary: Summary) -> str:
    longest = max(sum(each.phases.values()) for each in summary.ranks) or 1
    rows = []
    for each in summary.ranks[:_MOST_RANKS]:
        total = sum(each.phases.values())
        parts = [(phase, each.phases[phase] / longest) for phase in PHASES]
        rows.append(_bar(f"rank {each.rank}", parts, _seconds(total)))
    return _bars(rows)


def _bar(name: str, parts: Iterable[tuple[str, float]], value: str) -> str:
    pieces = "".join(
        f'<i class="{kind}" style="width:{100 * share:.2f}%" title="{_TEXTS.get(kind, kind)}"></i>'
        for kind, share in parts
        if share > 0
    )
    return f"<span>{escape(name)}</span><div>{pieces}</div><b>{value}</b>"


def _bars(rows: Sequence[str]) -> str:
    return f'<div class="bars">{"".join(rows)}</div>' if rows else ""


def _bytes_by_kind(summary: Summary) -> str:
    totals: dict[str, list[int]] = {}
    for kind in summary.kinds:
        name = f"{kind.operation} as {kind.codec}" if kind.codec else kind.operation
        total = totals.setdefault(name, [0, 0])
        total[0] += kind.network
        total[1] += kind.memory
    ordered = sorted(totals.items(), key=lambda item: -sum(item[1]))
    most = max((sum(total) for total in totals.values()), default=0)
    if most == 0:
        return ""
    rows = [
        _bar(
            name, [("network", network / most), ("memory", memory / most)], _bytes(network + memory)
        )
        for name, (network, memory) in ordered
        if network + memory > 0
    ]
    legend = (
        '<div class="legend"><span><i class="network"></i>network (UCX)</span>'
        '<span><i class="memory"></i>shared memory</span></div>'
    )
    return legend + _bars(rows)


def _predictions(summary: Summary) -> str:
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
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)

    def at(value: float) -> float:
        return 100 * (math.log10(value) - low) / (high - low)

    marks = "".join(
        f'<i style="left:{at(predicted):.2f}%;bottom:{at(measured):.2f}%" title="'
        f"{escape(_kind_text(kind))}: predicted {_seconds(predicted)}, measured "
        f'{_seconds(measured)}"></i>'
        for kind, predicted, measured in dots
    )
    ticks = [_seconds(10.0**power) for power in range(low, high + 1)]
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


def _slowest_peers(summary: Summary) -> str:
    ranks = [each.rank for each in summary.ranks]
    most = max(summary.waited_for.values(), default=0.0)
    if most == 0 or len(ranks) < 2:
        return ""
    by_peer = {
        peer: sum(seconds for (_, to), seconds in summary.waited_for.items() if to == peer)
        for peer in ranks
    }
    slowest = sorted(ranks, key=lambda rank: -by_peer[rank])[:8]
    longest = by_peer[slowest[0]] or 1
    bars = _bars(
        [
            _bar(f"rank {rank}", [("waited", by_peer[rank] / longest)], _seconds(by_peer[rank]))
            for rank in slowest
            if by_peer[rank] > 0
        ]
    )
    if len(ranks) > _MOST_RANKS:
        return bars
    head = "".join(f"<th>{peer}</th>" for peer in ranks)
    rows = []
    for rank in ranks:
        cells = []
        for peer in ranks:
            seconds = summary.waited_for.get((rank, peer), 0.0)
            title = f"rank {rank} waited {_seconds(seconds)} for rank {peer}"
            cells.append(f'<td style="--share:{seconds / most:.3f}" title="{title}"></td>')
        rows.append(f"<tr><th>{rank}</th>{''.join(cells)}</tr>")
    return (
        f'{bars}<div class="wide"><table class="heat"><tr><th></th>{head}</tr>{"".join(rows)}'
        "</table></div>"
    )


def _kind_text(kind: Kind) -> str:
    parts = [kind.operation, _bytes(kind.bytes), kind.plan, kind.codec]
    return " ".join(part for part in parts if part)


def _operations(summary: Summary) -> str:
    head = (
        "<tr><th>group</th><th>operation</th><th>up to</th><th>plan</th><th>codec</th>"
        "<th>count</th><th>together</th><th>median</th><th>p99</th><th>waiting</th>"
        "<th>measured / predicted</th></tr>"
    )
    rows = []
    for kind in summary.kinds[:_MOST_ROWS]:
        together = kind.seconds()
        ratio = f"{kind.took_predicted / kind.predicted:.2f}" if kind.predicted else ""
        count = f"{len(kind.durations):,}" + (f" + {kind.failed} failed" if kind.failed else "")
        cells = [
            kind.group,
            kind.operation,
            _bytes(kind.bytes) if kind.bytes else "",
            kind.plan,
            kind.codec,
            count,
            _seconds(together),
            _seconds(kind.quantile(0.5)),
            _seconds(kind.quantile(0.99)),
            _percent(kind.waited * 1e-9, together),
            ratio,
        ]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    left_out = len(summary.kinds) - _MOST_ROWS
    note = f'<p class="note">{left_out} more kinds are left out.</p>' if left_out > 0 else ""
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>{note}'


def _ranks(summary: Summary) -> str:
    head = (
        "<tr><th>rank</th><th>host</th><th>operations</th><th>lost</th>"
        "<th>clock right within</th></tr>"
    )
    rows = []
    for each in summary.ranks:
        clock = "unknown" if each.uncertainty_ns is None else _seconds(each.uncertainty_ns * 1e-9)
        cells = [str(each.rank), each.host, f"{each.operations:,}", f"{each.lost:,}", clock]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'


def _round_up(value: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value)


def _seconds(value: float) -> str:
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{value * scale:.3g} {unit}" if value > 0 else "0 s"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def _bytes(value: int) -> str:
    scaled = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if scaled < 1000:
            return f"{scaled:.3g} {unit}"
        scaled /= 1024
    return f"{scaled:.3g} TiB"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole > 0 else "—"
