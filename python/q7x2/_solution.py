"""What it took to reach a loss: time, steps, bytes, energy and money."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from q7x2._causes import Analysis
from q7x2._ledger_read import Ledger
from q7x2._prices import Bill, Prices, bill

CODEC_PHASES = ("select_ns", "encode_ns", "decode_ns")


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of a job.

    Attributes:
        run: Of the whole job.
        steps: How many steps it had; 0: none were found.
        target: Of the job up to the end of the first step with such a loss, and the number of that
            step from 1; None if it was not asked for.
        target_loss: That loss.
        codec_seconds: By codec: seconds of threads, over all ranks.
        memory: By rank: the largest resident memory in bytes.
    """

    run: Bill
    steps: int
    target: tuple[Bill, int] | None
    target_loss: float | None
    codec_seconds: dict[str, float]
    memory: dict[int, int]

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
        return found


class TargetError(Exception):
    """The loss that was asked for was not reached, or not logged."""


def costs(
    ledgers: Sequence[Ledger],
    analysis: Analysis,
    prices: Prices,
    target_loss: float | None = None,
) -> Costs:
    """Add everything up.

    Raises:
        TargetError: There is no step with such a loss.
    """
    steps = len(analysis.steps) if analysis.boundaries.origin != "none" else 0
    codecs: dict[str, float] = {}
    memory = {}
    for ledger in ledgers:
        for codec, taken in ledger.rows(
            ("codec", f"SUM({' + '.join(CODEC_PHASES)})"), "codec IS NOT NULL GROUP BY codec"
        ):
            codecs[codec] = codecs.get(codec, 0.0) + taken * 1e-9
        memory[ledger.rank] = max((each.memory_bytes for each in ledger.samples), default=0)
    target = None if target_loss is None else _target(ledgers, analysis, prices, target_loss)
    return Costs(bill(ledgers, prices), steps, target, target_loss, codecs, memory)


def _target(
    ledgers: Sequence[Ledger], analysis: Analysis, prices: Prices, target: float
) -> tuple[Bill, int]:
    known = [loss for loss in analysis.boundaries.losses if loss is not None]
    if not known:
        raise TargetError("the ledgers have no losses; q7x2.log_step(loss) writes them")
    for number, (step, loss) in enumerate(
        zip(analysis.steps, analysis.boundaries.losses, strict=False), 1
    ):
        if loss is not None and loss <= target:
            return bill(ledgers, prices, step.end_ns), number
    raise TargetError(f"no step has a loss of {target:g} or less; the lowest is {min(known):g}")
