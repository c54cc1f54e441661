"""Where the runner finds things, and where it leaves what it found."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the checkout
TESTS = ROOT / "tests" / "python"

# The CMake folder, and the folder for results: logs, failures, what failed last.
BUILD = ROOT / os.environ.get("Q7X2_BUILD_DIR", "build/dev")
RESULTS = ROOT / os.environ.get("Q7X2_TEST_RESULTS", "build/test")

# Seconds per file of pytest and per suite of GoogleTest: `./dev test --record` writes them.
DURATIONS = ROOT / "tests" / "durations.json"
