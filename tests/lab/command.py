"""Command lines: their exit codes, and what they say of errors that users cause."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

from tests.lab.namespaces import LabError
from tests.lab.processes import RanksFailed

T = TypeVar("T")


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


def explained(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` as a type for argparse, which hides the text of any other error than its own."""

    def typed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed
