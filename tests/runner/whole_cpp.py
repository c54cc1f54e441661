"""``python -m tests.runner.whole_cpp``: every test of every GoogleTest program."""

from __future__ import annotations

import random
import sys

from . import quick
from .binaries import binaries
from .names import Chosen


def main() -> int:
    """Returns 1 if a test failed."""
    chosen = Chosen(cpp=[f"{binary.name}:*" for binary in binaries()])
    seed = random.SystemRandom().randrange(1, 1 << 31)
    return 0 if quick.run(chosen, nightly=True, seed=seed).ok else 1


if __name__ == "__main__":
    sys.exit(main())
