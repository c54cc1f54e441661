"""The counters of this process as metrics with labels, for whatever exports them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

Stats = dict[str, Any]
Sample = tuple[tuple[str, ...], float]  # the values of the labels, and that of the metric

BYTES = (
    ("sent", "network"),
    ("received", "network"),
    ("sent", "memory"),
    ("received", "memory"),
)
_LABELS = ("rank", "group", "operation")


@dataclasses.dataclass(frozen=True)
class Family:
    """A metric.

    Attributes:
        name: Without the ending ``_total``, which Prometheus has for counters.
        unit: As UCUM writes it.
        samples: Takes what ``stats`` returns.
    """

    name: str
    description: str
    unit: str
    is_counter: bool
    labels: tuple[str, ...]
    samples: Callable[[Stats], Iterator[Sample]]


def _of_operations(
    name: str,
    description: str,
    unit: str,
    values: Callable[[dict[str, Any]], list[Sample]],
    *more: str,
    is_counter: bool = True,
) -> Family:
    """A metric with ``values`` of each kind of operation; ``more``: labels that these have."""

    def samples(stats: Stats) -> Iterator[Sample]:
        for labels, counted in _counters(stats):
            for others, value in values(counted):
                yield (*labels, *others), value

    return Family(name, description, unit, is_counter, (*_LABELS, *more), samples)


def _counters(stats: Stats) -> Iterator[tuple[tuple[str, str, str], dict[str, Any]]]:
    """Rank in the job, group and operation, with each combination once."""
    merged: dict[tuple[str, str, str], dict[str, Any]] = {}
    for group in stats["groups"]:
        rank = os.environ.get("RANK", str(group["rank"]))
        for operation, counted in group["operations"].items():
            # A group's name may be used again once it is closed; the later one counts.
            merged[rank, group["name"], operation] = counted
    yield from merged.items()


def _norms(stats: Stats) -> Iterator[Sample]:
    for hook in stats["hooks"]:
        for name, each in hook["parameters"].items():
            for of in ("gradient", "residual"):
                yield (os.environ.get("RANK", ""), name_of(hook), name, of), each[of]


def name_of(hook: dict[str, Any]) -> str:
    """What metrics call a hook of ``stats``."""
    return f"{hook['name']} {hook['hook']}"


FAMILIES = (
    _of_operations(
        "q7x2_operations",
        "Operations that succeeded.",
        "{operation}",
        lambda counted: [((), counted["count"])],
    ),
    _of_operations(
        "q7x2_failed_operations",
        "Operations that failed.",
        "{operation}",
        lambda counted: [((), counted["failed"])],
    ),
    _of_operations(
        "q7x2_tensor_bytes",
        "Bytes of tensors.",
        "By",
        lambda counted: [((of,), counted[f"{of}_bytes"]) for of in ("input", "output")],
        "direction",
    ),
    _of_operations(
        "q7x2_message_bytes",
        "Bytes of messages without headers, through networks or shared memory.",
        "By",
        lambda counted: [(each, counted[f"{'_'.join(each)}_bytes"]) for each in BYTES],
        "direction",
        "via",
    ),
    _of_operations(
        "q7x2_operation_seconds",
        "Seconds by phase. Phases of threads that work at once add up.",
        "s",
        lambda counted: [((phase,), value) for phase, value in counted["seconds"].items()],
        "phase",
    ),
    _of_operations(
        "q7x2_operation_duration_seconds",
        "Quantiles of the duration of one operation since the start.",
        "s",
        lambda counted: [
            ((text,), counted["took"][key])
            for text, key in (("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99"))
        ],
        "quantile",
        is_counter=False,
    ),
    _of_operations(
        "q7x2_predicted_seconds",
        "What the planner expected.",
        "s",
        lambda counted: [((), counted["predicted"]["seconds"])],
    ),
    _of_operations(
        "q7x2_predicted_took_seconds",
        "What operations with an expectation took.",
        "s",
        lambda counted: [((), counted["predicted"]["took"])],
    ),
    Family(
        "q7x2_codec_norm",
        "L2 norms of gradients, and of what codecs held back, when last measured.",
        "1",
        False,
        ("rank", "hook", "parameter", "of"),
        _norms,
    ),
)
