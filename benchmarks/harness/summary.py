"""From the stamps of all ranks to the figures of one cell (one collective at one size)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness.ops import OPS, ROOT, Op
from benchmarks.harness.schedule import Samples

_DRAWS = 1000
_QUANTILES = {"p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99}


def summarize(
    op: Op, size: int, ranks: list[dict[str, Samples]], hosts: Sequence[int]
) -> dict[str, Any]:
    """The cell as it stands in the results file; times in seconds, sizes in bytes.

    Args:
        ranks: by rank, the samples of each backend.
        hosts: the virtual host of each rank; empty on one host.
    """
    n = len(ranks)
    cell: dict[str, Any] = {"op": op.name, "size": size, "ranks": n, "backends": {}}
    if hosts:
        cell["hosts"] = len(set(hosts))
    for label in ranks[0]:
        samples = [rank[label] for rank in ranks]
        times = [_times(op, samples, b) for b in range(len(samples[0].start))]
        pooled = np.concatenate(times)
        figures: dict[str, Any] = {
            name: float(np.quantile(pooled, q)) for name, q in _QUANTILES.items()
        }
        figures["min"] = float(pooled.min())
        figures["mean"] = float(pooled.mean())
        figures["iterations"] = int(pooled.size)
        figures["block_medians"] = [float(np.median(block)) for block in times]
        cpu = np.sum([np.concatenate(s.cpu) for s in samples], axis=0) * 1e-9
        figures["cpu_seconds"] = float(np.median(cpu))
        figures["cpu_seconds_mean"] = float(np.mean(cpu))
        figures["bus_bandwidth"] = size / figures["median"] * op.bus_factor(n)
        if hosts:
            # The counters belong to the host: one of its ranks speaks for it.
            sent = sum(sum(samples[hosts.index(host)].sent) for host in set(hosts))
            figures["bytes_sent"] = sent / pooled.size
            crossing = op.crossing(size, n, cell["hosts"])
            figures["bytes_required"] = crossing * samples[0].share
        cell["backends"][label] = figures
    return cell


def _times(op: Op, samples: list[Samples], block: int) -> npt.NDArray[np.float64]:
    starts = np.array([s.start[block] for s in samples])
    ends = np.array([s.end[block] for s in samples])
    begin = starts[ROOT] if op.flow == "from_root" else starts.max(axis=0)
    # A rank may be descheduled between its stamp and its call; a time stays positive.
    nanoseconds: npt.NDArray[np.float64] = np.maximum(ends.max(axis=0) - begin, 1)
    return nanoseconds * 1e-9


def ratio(cell: dict[str, Any], label: str, baseline: str) -> float:
    """How many times faster `label` is than `baseline`, by medians."""
    figures = cell["backends"]
    return float(figures[baseline]["median"] / figures[label]["median"])


def ratio_spread(cell: dict[str, Any], label: str, baseline: str) -> tuple[float, float]:
    """The lowest and highest ratio between neighbouring blocks."""
    figures = cell["backends"]
    ratios = [
        theirs / ours
        for ours, theirs in zip(
            figures[label]["block_medians"], figures[baseline]["block_medians"], strict=True
        )
    ]
    return min(ratios), max(ratios)


@dataclass(frozen=True)
class Lead:
    """How many times faster something is than the best of several."""

    best: str
    ratio: float
    interval: tuple[float, float]  #: 95 % of what other blocks of the same run would have given


def lead_over_best(cell: dict[str, Any], label: str, others: Sequence[str]) -> Lead:
    """How `label` stands to the fastest of `others`.

    Of many equal ones the fastest in one measurement owes some of its lead to chance. So the even
    blocks name the fastest and the odd ones compare, and the reverse; the geometric mean counts.
    Only what was measured in the same block is compared, since the machine may change in between.
    The interval is a bootstrap: both kinds of blocks are drawn again, with replacement.
    """
    times = np.log([cell["backends"][name]["block_medians"] for name in (label, *others)])
    times = times - times[1:].mean(axis=0)
    blocks = np.arange(times.shape[1])

    def fastest(drawn: npt.NDArray[np.int64]) -> int:
        return 1 + int(np.argmin(np.median(times[1:, drawn], axis=1)))

    def ratio(even: npt.NDArray[np.int64], odd: npt.NDArray[np.int64]) -> float:
        leads = [
            np.median((times[fastest(named)] - times[0])[compared])
            for named, compared in ((even, odd), (odd, even))
        ]
        return float(np.exp(np.mean(leads)))

    even, odd = blocks[::2], blocks[1::2]
    random = np.random.default_rng(0)
    drawn = [
        ratio(random.choice(even, len(even)), random.choice(odd, len(odd))) for _ in range(_DRAWS)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Lead(others[fastest(blocks) - 1], ratio(even, odd), (float(low), float(high)))


def line_seconds(cell: dict[str, Any], bits_per_second: float) -> float:
    """How long the NIC of each host is busy at least with a collective.

    Whatever the number of ranks on a host: what leaves it may be the sum of theirs, and what
    reaches it needs to come once. For an all-reduce by h hosts that is 2 (h - 1) / h * S / rate.
    """
    factor = OPS[cell["op"]].bus_factor(cell["hosts"])
    return float(cell["size"] * factor * 8 / bits_per_second)
