"""Runs a command line: its exit code, and what it says of errors that users cause."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from benchmarks.harness.lab import LabError
from benchmarks.harness.processes import RanksFailed


def run(main: Callable[[list[str]], object], argv: list[str]) -> int:
    """Calls `main` with the arguments and returns the exit code."""
    # `timeout` and job systems send SIGTERM: end the ranks and take the lab down on it too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main(argv)
    except (LabError, RanksFailed, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
