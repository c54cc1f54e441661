"""What it took to reach a loss: time, steps, bytes, energy and money."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from q7x2._core.units import bytes_text, time_text
from q7x2.ledger.causes import Analysis
from q7x2.ledger.prices import Bill, Prices, bill
from q7x2.ledger.reader import Ledger

CODEC_PHASES = ("select_ns", "encode_ns", "decode_ns")


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of a job.

    Attributes:
        run: The cost of the whole job.
        steps: How many steps it had; 0: none were found.
        target: The cost up to the end of the first step with such a loss, and the number of that
            step from 1; None if it was not asked for, or not reached.
        target_loss: That loss.
        codec_seconds: By codec: seconds of threads, over all ranks.
        memory: By rank: the largest resident memory in bytes.
        missed: Why there is no step with that loss, in a sentence; None if there is one, or if it
            was not asked for.
    """

    run: Bill
    steps: int
    target: tuple[Bill, int] | None
    target_loss: float | None
    codec_seconds: dict[str, float]
    memory: dict[int, int]
    missed: str | None = None

    def facts(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = {
            "run": self.run.facts(),
            "steps": self.steps,
            "codec_seconds": self.codec_seconds,
            "memory": self.memory,
        }
        if self.steps:
            found["money_per_step"] = self.run.money / self.steps
            if self.run.joules is not None:
                found["joules_per_step"] = self.run.joules / self.steps
        if self.target is not None:
            reached, step = self.target
            found["target"] = {"loss": self.target_loss, "step": step, **reached.facts()}
        elif self.missed is not None:
            found["target"] = {"loss": self.target_loss, "step": None}
        return found


def costs(
    ledgers: Sequence[Ledger],
    analysis: Analysis,
    prices: Prices,
    target_loss: float | None = None,
) -> Costs:
    """Add everything up."""
    steps = len(analysis.steps) if analysis.boundaries.origin != "none" else 0
    codecs: dict[str, float] = {}
    memory = {}
    for ledger in ledgers:
        for codec, taken in ledger.rows(
            ("codec", f"SUM({' + '.join(CODEC_PHASES)})"), "codec IS NOT NULL GROUP BY codec"
        ):
            codecs[codec] = codecs.get(codec, 0.0) + taken * 1e-9
        memory[ledger.rank] = max((each.memory_bytes for each in ledger.samples), default=0)
    target = missed = None
    if target_loss is not None:
        target = _target(ledgers, analysis, prices, target_loss)
        missed = None if target else _why_missed(analysis, target_loss)
    return Costs(
        run=bill(ledgers, prices),
        steps=steps,
        target=target,
        target_loss=target_loss,
        codec_seconds=codecs,
        memory=memory,
        missed=missed,
    )


def _target(
    ledgers: Sequence[Ledger], analysis: Analysis, prices: Prices, target: float
) -> tuple[Bill, int] | None:
    for number, (step, loss) in enumerate(
        zip(analysis.steps, analysis.boundaries.losses, strict=False), 1
    ):
        if loss is not None and loss <= target:
            return bill(ledgers, prices, step.end_ns), number
    return None


def _why_missed(analysis: Analysis, target: float) -> str:
    losses = (loss for loss in analysis.boundaries.losses if loss is not None)
    lowest = min((loss for loss in losses if not math.isnan(loss)), default=None)
    if lowest is None:
        return "the ledgers have no losses; q7x2.log_step(loss) writes them"
    return f"no step has a loss of {target:g} or less; the lowest is {lowest:g}"


def cost_lines(costs: Costs) -> list[str]:
    """The report, without an end of line."""
    found = [f"the run: {_bill_text(costs.run)}"]
    if costs.steps:
        energy = ""
        if costs.run.joules is not None:
            energy = f", {costs.run.joules / costs.steps:.4g} J"
        money = costs.run.money / costs.steps
        found.append(f"per step: {money:.4g} {costs.run.currency}{energy} ({costs.steps:,} steps)")
    if costs.target is not None:
        reached, step = costs.target
        found.append(f"to a loss of {costs.target_loss:g} (step {step:,}): {_bill_text(reached)}")
    elif costs.missed is not None:
        found.append(f"to a loss of {costs.target_loss:g}: {costs.missed}")
    for codec, seconds in costs.codec_seconds.items():
        found.append(f"codec {codec}: {time_text(seconds)} of threads, all ranks together")
    largest = max(costs.memory, key=costs.memory.__getitem__)
    found.append(f"largest resident memory: {bytes_text(costs.memory[largest])} on rank {largest}")
    return found


def _bill_text(bill: Bill) -> str:
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
