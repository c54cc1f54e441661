"""The sections of the report about money, energy and the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from q7x2._core.units import bytes_text, time_text
from q7x2.ledger.causes import Analysis
from q7x2.ledger.prices import Bill, Prices, bill
from q7x2.ledger.reader import Ledger
from q7x2.ledger.solution import Costs, cost_lines
from q7x2.report.axes import Axes
from q7x2.report.charts import line, section, table

_MOST_POINTS = 40


def sections(
    ledgers: Sequence[Ledger],
    analysis: Analysis,
    prices: Prices | None,
    costs: Costs | None,
    axes: Axes,
) -> list[str]:
    """That about the loss, if it was logged, and that about costs, if there are prices."""
    found = [_loss(ledgers, analysis, prices, axes), ""]
    if costs is not None:
        body = "".join(f"<li>{escape(text)}</li>" for text in cost_lines(costs))
        rows = [
            [host, "messages" if interface == "*" else interface, bytes_text(count)]
            for (host, interface), count in sorted(costs.run.sent.items())
            if count > 0
        ]
        body = f"<ul>{body}</ul>" + (table(["host", "interface", "sent"], rows) if rows else "")
        found[1] = section("Costs", "By the prices that were given.", body)
    return found


def _loss(ledgers: Sequence[Ledger], analysis: Analysis, prices: Prices | None, axes: Axes) -> str:
    known = [
        (number, step.end_ns, loss)
        for number, (step, loss) in enumerate(
            zip(analysis.steps, analysis.boundaries.losses, strict=False), 1
        )
        if loss is not None and loss == loss
    ]
    if len(known) < 2:
        return ""
    count = min(len(known), _MOST_POINTS)
    points = [known[index * (len(known) - 1) // (count - 1)] for index in range(count)]
    paid = [bill(ledgers, prices or Prices.make({}), end) for _, end, _ in points]
    over: list[tuple[str, list[float], Callable[[float], str]]] = [
        ("steps", [float(number) for number, *_ in points], "{:,.0f}".format),
        ("seconds", [each.seconds for each in paid], time_text),
        ("bytes sent", [float(sum(each.sent.values())) for each in paid], bytes_text),
    ]
    if prices is not None:
        over.append((prices.currency, [each.money for each in paid], _money(paid)))
    losses = [loss for *_, loss in points]
    charts = [
        f"<div><h3>over {escape(title)}</h3>"
        f"{line(list(zip(places, losses, strict=True)), axes, f'loss over {title}', text)}</div>"
        for title, places, text in over
    ]
    lowest = min(known, key=lambda each: each[2])
    note = (
        f"The mean over the ranks. The lowest is {lowest[2]:.6g} in step {lowest[0]:,}; "
        f"the last is {known[-1][2]:.6g}."
    )
    return section("Loss", note, f'<div class="multiples">{"".join(charts)}</div>')


def _money(paid: Sequence[Bill]) -> Callable[[float], str]:
    return lambda value: f"{value:.3g} {escape(paid[0].currency)}"
