"""What the studies share: ranks, virtual hosts, timing, statistics, tables, pictures."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]  #: the checkout
RESULTS = ROOT / "benchmarks" / "results"
