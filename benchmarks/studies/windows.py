"""Puts and signals between two ranks of this host, beside send and recv of the same bytes.

A turn is a ping-pong of `--calls` round trips of each kind: a message, or a put, a signal and the
wait for it. The kinds take turns; a figure is half of the median round trip.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from benchmarks.harness import arguments, ranks, report
from benchmarks.harness.arguments import option

MESSAGE, SHARED, OWN = "send, recv", "Window.shared", "Window(tensor)"
GOAL = 0.5  # of a put, in times of a message

OPTIONS = {
    "sizes": option("4,1M", "bytes", type=arguments.sizes),
    "calls": option(300, "round trips of each kind in a turn"),
    "turns": option(15),
}


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for size in args.sizes:
        spec = {"size": size, "calls": args.calls, "turns": args.turns}
        seconds = ranks.run(__name__, spec, 2)
        yield {"size": size, "load_average": os.getloadavg()[0], "seconds": seconds}


def row_lines(row: dict[str, Any]) -> Iterator[str]:
    yield f"{report.size(row['size'])}, load average {row['load_average']:.1f}"
    for kind, seconds in row["seconds"].items():
        ratio = seconds / row["seconds"][MESSAGE]
        text = f"  {kind}: {report.duration(seconds)}, {ratio:.2f} x"
        yield text + ("" if kind == MESSAGE else f", {report.verdict(ratio <= GOAL)}")


def _cell(kind: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: report.duration(row["seconds"][kind])


# For docs/windows.md.
COLUMNS: report.Columns = (
    ("size", lambda row: report.size(row["size"])),
    ("`send`, `recv`", _cell(MESSAGE)),
    ("`Window.shared`", _cell(SHARED)),
    ("`Window(tensor)`", _cell(OWN)),
)


def rank_main(spec: dict[str, Any]) -> dict[str, float]:
    """Seconds of one way, by kind."""
    import q7x2
    import torch
    import torch.distributed as dist

    from benchmarks.harness import timing

    dist.init_process_group("q7x2")
    is_first = dist.get_rank() == 0
    other = 1 if is_first else 0
    elements = max(1, spec["size"] // 4)
    tensor, got = torch.ones(elements), torch.zeros(elements)
    windows = {SHARED: q7x2.Window.shared(elements), OWN: q7x2.Window(torch.zeros(elements))}

    def messages() -> None:
        for sends in (is_first, not is_first):
            if sends:
                dist.send(tensor, other)
            else:
                dist.recv(got, other)

    def puts(window: q7x2.Window) -> None:
        for sends in (is_first, not is_first):
            if sends:
                window.put(tensor, other)
                window.signal(other)
            else:
                window.wait_signal(other)

    kinds: dict[str, Callable[[], None]] = {MESSAGE: messages}
    kinds |= {kind: lambda window=window: puts(window) for kind, window in windows.items()}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(spec["turns"] + 1):  # the first one does not count
        for kind, call in kinds.items():
            each = [timing.timed(call) for _ in range(spec["calls"])]
            if turn > 0:
                found[kind].append(median(each) / 2)
    for window in windows.values():
        window.close()
    dist.destroy_process_group()
    return {kind: median(each) for kind, each in found.items()}
