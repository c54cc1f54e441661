"""How long `q7x2 report` takes, and how large its page is, for a long run.

The ledgers are made for it: each step of each rank has some all-reduces, a loss now and then, and
one sample.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GOAL_S = 20.0
GOAL_BYTES = 5_000_000
_TESTS = Path(__file__).parents[2] / "tests" / "python"


def measure(steps: int, ranks: int, buckets: int) -> dict[str, Any]:
    """Seconds, processor seconds, and bytes of the page."""
    sys.path.insert(0, str(_TESTS))
    from ledger_files import Training

    with tempfile.TemporaryDirectory() as folder:
        training = Training(ranks=ranks, steps=steps, buckets=buckets, loss_every=10, watts=100)
        training.write(Path(folder))
        page = Path(folder) / "report.html"
        command = [sys.executable, "-m", "q7x2", "report", folder, "--out", str(page)]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "steps": steps,
            "ranks": ranks,
            "all_reduces_per_step": buckets,
            "seconds": seconds,
            "cpu_seconds": now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime,
            "bytes": page.stat().st_size,
        }


def sentence(row: dict[str, Any]) -> str:
    """The row for a person."""
    return (
        f"report of {row['steps']:,} steps of {row['ranks']} ranks: {row['seconds']:.1f} s "
        f"(CPU {row['cpu_seconds']:.1f} s), {row['bytes']:,} bytes; goal: at most {GOAL_S:g} s and "
        f"{GOAL_BYTES:,} bytes"
    )
