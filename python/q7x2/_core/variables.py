"""The environment variables of q7x2, and a warning about names that are none of them."""

from __future__ import annotations

import difflib
import functools
import os
import warnings

KNOWN = (
    "Q7X2_ADVERTISE",
    "Q7X2_ALGO",
    "Q7X2_ATTACH",
    "Q7X2_CONFIG",
    "Q7X2_CONGESTION",
    "Q7X2_DEVICE_PATH",
    "Q7X2_DUMP",
    "Q7X2_ENCRYPT",
    "Q7X2_FABRIC",
    "Q7X2_FABRIC_MAX_AGE",
    "Q7X2_FLIGHT_RECORDER",
    "Q7X2_HOST_ID",
    "Q7X2_ISA",
    "Q7X2_LANES",
    "Q7X2_LEDGER",
    "Q7X2_LEDGER_SIZE",
    "Q7X2_LOG",
    "Q7X2_MEASURE_RESIDUALS",
    "Q7X2_OPENTELEMETRY",
    "Q7X2_PLAN",
    "Q7X2_PORT_RANGE",
    "Q7X2_PROBE",
    "Q7X2_REACT",
    "Q7X2_REFINE",
    "Q7X2_RELAY",
    "Q7X2_SECRET",
    "Q7X2_SECRET_FILE",
    "Q7X2_SILENCE",
    "Q7X2_STREAMS",
    "Q7X2_UCX",
)
"""What q7x2 reads, in C++ or in Python. docs/reference.md says what each one means."""

OF_DEVELOPMENT = (
    "Q7X2_BUILD_DIR",
    "Q7X2_FIBRES_SEED",
    "Q7X2_HOOK_CASES",
    "Q7X2_JOBS",
    "Q7X2_RANDOM_",
    "Q7X2_TEST_",
    "Q7X2_TORCH",
    "Q7X2_WHEEL_TORCHES",
)
"""Beginnings of the variables that ``./dev`` and the tests read."""


def unknown() -> list[str]:
    """The variables in the environment whose names begin like q7x2's, but which nothing reads.

    An empty variable counts as unset, as it does for most of those that q7x2 reads.
    """
    set_here = (name for name, value in os.environ.items() if value)
    return sorted(
        name
        for name in set_here
        if name.startswith("Q7X2_") and name not in KNOWN and not name.startswith(OF_DEVELOPMENT)
    )


def nearest(name: str) -> str | None:
    """The known variable whose name is most like ``name``; None if none is like it."""
    ends = {known.removeprefix("Q7X2_"): known for known in KNOWN}
    found = difflib.get_close_matches(name.removeprefix("Q7X2_"), ends, n=1)
    return ends[found[0]] if found else None


@functools.cache
def warn_of_unknown() -> None:
    """Warn of each unknown variable: it has no effect. Only the first call of a process warns."""
    for name in unknown():
        known = nearest(name)
        hint = f"did you mean {known}?" if known else "docs/reference.md lists those that have one"
        warnings.warn(f"q7x2: the variable {name} has no effect; {hint}", stacklevel=2)
