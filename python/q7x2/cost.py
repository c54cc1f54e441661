"""``q7x2 cost``: what a job costs in money, energy and bytes."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from q7x2._argument_types import finite
from q7x2._units import bytes_text, time_text

if TYPE_CHECKING:
    from q7x2._prices import Bill
    from q7x2._solution import Costs


def add_parser(commands: Any) -> None:
    """Add ``cost`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "cost",
        help="say what a job costs: money, energy and bytes",
        epilog="Q7X2_LEDGER=DIR makes each rank of a job write its ledger there.",
    )
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="with the ledgers")
    parser.add_argument(
        "--prices", type=pathlib.Path, metavar="FILE", required=True, help="prices as TOML"
    )
    parser.add_argument(
        "--target-loss",
        type=finite,
        metavar="LOSS",
        help="also say what it took to reach this loss",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a report")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import json

    from q7x2 import _causes, _ledger_read, _prices, _solution

    try:
        prices = _prices.Prices.read(options.prices)
        ledgers = _ledger_read.read(options.directory)
        analysis = _causes.analyse(ledgers)
        found = _solution.costs(ledgers, analysis, prices, options.target_loss)
    except (_ledger_read.LedgerError, ValueError, OSError) as error:
        print(f"q7x2 cost: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found.facts(), indent=2) if options.json else "\n".join(lines(found)))
    return 0 if found.missed is None else 1


def lines(costs: Costs) -> list[str]:
    """The report, without an end of line."""
    found = [f"the run: {bill_text(costs.run)}"]
    if costs.steps:
        energy = ""
        if costs.run.joules is not None:
            energy = f", {costs.run.joules / costs.steps:.4g} J"
        money = costs.run.money / costs.steps
        found.append(f"per step: {money:.4g} {costs.run.currency}{energy} ({costs.steps:,} steps)")
    if costs.target is not None:
        reached, step = costs.target
        found.append(f"to a loss of {costs.target_loss:g} (step {step:,}): {bill_text(reached)}")
    elif costs.missed is not None:
        found.append(f"to a loss of {costs.target_loss:g}: {costs.missed}")
    for codec, seconds in costs.codec_seconds.items():
        found.append(f"codec {codec}: {time_text(seconds)} of threads, all ranks together")
    largest = max(costs.memory, key=costs.memory.__getitem__)
    found.append(f"largest resident memory: {bytes_text(costs.memory[largest])} on rank {largest}")
    return found


def bill_text(bill: Bill) -> str:
    """A bill on one line."""
    energy = "energy unknown (no RAPL, and no watts in the prices)"
    if bill.joules is not None:
        energy = f"{bill.joules / 3.6e6:.4g} kWh"
        if bill.estimated_hosts:
            energy += f" (estimated on {', '.join(bill.estimated_hosts)})"
        else:
            energy += " (processor packages, by RAPL)"
    return (
        f"{bill.money:.4g} {bill.currency} = {bill.nodes:.4g} for {bill.node_hours:.4g} node-hours "
        f"+ {bill.traffic:.4g} for {bytes_text(sum(bill.sent.values()))} sent "
        f"+ {bill.energy:.4g} for energy; {time_text(bill.seconds)}, {energy}"
    )
