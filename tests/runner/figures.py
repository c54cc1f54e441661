"""Finds in a step's output how much it has tested: the last line of each known kind."""

from __future__ import annotations

import re

COUNTS = re.compile(r"\b(\d+) (passed|failed|skipped|errors?)\b")
LINES = [
    re.compile(r"\d+ tests failed out of \d+"),  # CTest
    re.compile(r"\d[\d,]* cases?\b.*"),  # soak
    re.compile(r"\d+ inputs in .*"),  # fuzz
    re.compile(r"\d+ of \d+ passed.*"),  # PyTorch's own suite
    re.compile(r"^(?:csrc|python/q7x2) .*%", re.M),  # coverage
    re.compile(r"\d+ names, \d+ new, \d+ gone"),  # untested
]


def find(output: str) -> str:
    """One line for a person; empty if nothing is known."""
    counted = [line for line in output.splitlines() if re.search(r"\b\d+ (passed|failed)\b", line)]
    found = []
    if counted:
        found.append(", ".join(f"{count} {what}" for count, what in COUNTS.findall(counted[-1])))
    for line in LINES:
        matches = line.findall(output)
        if "%" in line.pattern:
            found += [" ".join(match.split()) for match in matches]
        elif matches and not (counted and "passed" in line.pattern):
            found.append(" ".join(matches[-1].split()))
    return "; ".join(found)
