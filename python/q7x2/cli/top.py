"""``q7x2 top``: a live view of a running job in the terminal.

``waits`` is the share of the time in operations that is spent waiting, and ``for`` the rank that is
waited for longest. ``CPU`` counts all threads of a rank; ``lacks`` is the share of the time in
which its main thread is ready to run and has no processor. Links are listed by how long their
receivers wait, added up, with the rates of the sender's busiest interface.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
import time
from typing import TYPE_CHECKING, Any

from q7x2._core.units import bytes_text, time_text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from q7x2.ledger.live import Live
    from q7x2.ledger.prices import Bill, Prices

_MOST_PLANS = 10
_MOST_LINKS = 5
# A ledger is written once per second; one that is older belongs to a rank that has ended or hangs.
_OLD = 5.0


def add_parser(commands: Any) -> None:
    """Add ``top`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "top",
        help="watch a running job in the terminal",
        epilog="Q7X2_LEDGER=DIR makes each rank of a job write its ledger there.",
    )
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="with the ledgers")
    parser.add_argument("--prices", type=pathlib.Path, metavar="FILE", help="prices as TOML")
    parser.add_argument("--window", type=float, default=10.0, help="seconds that are looked at")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two updates")
    parser.add_argument("--once", action="store_true", help="print one view and end")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live as Screen

    from q7x2.ledger import reader as ledger_reader
    from q7x2.ledger.prices import Prices

    try:
        if not (0 < options.window < math.inf and 0 < options.interval < math.inf):
            raise ValueError(
                "expected seconds above 0 for --window and --interval, got "
                f"{options.window:g} and {options.interval:g}"
            )
        prices = None if options.prices is None else Prices.read(options.prices)
        first = view(options.directory, options.window, prices)
        if options.once:
            Console().print(first)
            return 0
        with Screen(first, screen=True, auto_refresh=False) as screen:
            while True:
                time.sleep(options.interval)
                screen.update(view(options.directory, options.window, prices), refresh=True)
    except KeyboardInterrupt:
        return 0
    except (ledger_reader.LedgerError, ValueError, OSError) as error:
        print(f"q7x2 top: {error}", file=sys.stderr)
        return 1


def view(directory: pathlib.Path, window: float, prices: Prices | None) -> Group:
    """The view of now."""
    from rich.console import Group

    from q7x2.ledger import live as ledger_live
    from q7x2.ledger import reader as ledger_reader
    from q7x2.ledger import residuals as ledger_residuals
    from q7x2.ledger.prices import bill

    ledgers = ledger_reader.read(directory)
    live = ledger_live.look(ledgers, window)
    paid = None if prices is None else bill(ledgers, prices)
    blocks: list[Table | str] = [
        _heading(live, paid),
        _ranks(live),
        _links(live),
        _plans(live),
        ledger_residuals.lines(ledgers),
        _troubles(live),
    ]
    spaced = [each for block in blocks if block for each in (block, "")]
    return Group(*spaced)


def _heading(live: Live, paid: Bill | None) -> str:
    network = sum(each.network for each in live.ranks)
    text = f"{len(live.ranks)} ranks, last {live.seconds:g} s, {bytes_text(network)}/s of messages"
    if paid is not None and paid.seconds > 0:
        hourly = paid.money / paid.seconds * 3600
        text += f", {hourly:.4g} {paid.currency}/h ({paid.money:.4g} so far)"
    return text


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _ranks(live: Live) -> Table:
    table = _table(
        "rank", "host", "op/s", "sent/s", "shared/s", "waits", "for", "CPU", "lacks", "memory"
    )
    for each in live.ranks:
        table.add_row(
            str(each.rank),
            each.host,
            f"{each.operations:.0f}",
            bytes_text(each.network),
            bytes_text(each.memory),
            _percent(each.waiting),
            "" if each.slowest is None else str(each.slowest),
            _percent(each.ran),
            _percent(each.delayed),
            bytes_text(each.resident),
        )
    return table


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _troubles(live: Live) -> str:
    found = [
        f"rank {each.rank} has written nothing for {time_text(each.age)}: it has ended, or hangs"
        for each in live.ranks
        if each.age > _OLD
    ]
    found += [
        f"rank {each.rank}: {each.failed} operations failed" for each in live.ranks if each.failed
    ]
    return "\n".join(found)


def _links(live: Live) -> Table:
    table = _table("from", "to", "waits", "interface", "received/s", "sent/s")
    rates = {each.host: each.interfaces for each in live.ranks}
    longest = sorted(live.links.items(), key=lambda item: -item[1])[:_MOST_LINKS]
    for (sender, receiver), seconds in longest:
        busiest = max(
            rates.get(sender, {}).items(), key=lambda item: sum(item[1]), default=("", (0.0, 0.0))
        )
        name, (received, sent) = busiest
        rate = [bytes_text(received), bytes_text(sent)] if name else ["", ""]
        table.add_row(sender, receiver, f"{100 * seconds:.0f} %", name, *rate)
    return table


def _plans(live: Live) -> Table:
    table = _table("operation", "up to", "plan", "codec", "op/s", "median", "x predicted")
    for plan in live.plans[:_MOST_PLANS]:
        ratio = plan.measured_to_predicted
        table.add_row(
            plan.operation,
            bytes_text(plan.bytes),
            plan.plan,
            plan.codec,
            f"{plan.rate:.1f}",
            time_text(plan.median),
            "" if ratio is None else f"{ratio:.2f}",
        )
    return table
