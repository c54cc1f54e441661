"""The seed of a run: one number from which every random choice of a test follows.

The first process of a run draws it, unless ``Q7X2_RANDOM_SEED`` is set. All other processes inherit
that variable. A run that failed prints it, and the command that repeats a test sets it.
"""

from __future__ import annotations

import os
import random

VARIABLE = "Q7X2_RANDOM_SEED"

# Short enough to be read out and typed.
_LIMIT = 1_000_000


def seed() -> int:
    """Return the seed of this run. Draw it if no process of the run has done so.

    Raises ValueError if the variable is not a whole number.
    """
    text = os.environ.setdefault(VARIABLE, str(random.SystemRandom().randrange(1, _LIMIT)))
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{VARIABLE}={text}: expected a whole number") from None
