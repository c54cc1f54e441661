"""The arguments of ``./dev test``."""

from __future__ import annotations

import argparse
import os
import random

CONDITIONS = ("idle", "busy", "one")


def part(text: str) -> tuple[int, int]:
    """``K/N``, with 1 <= K <= N."""
    first, slash, second = text.partition("/")
    if slash and first.isdigit() and second.isdigit() and 1 <= int(first) <= int(second):
        return int(first), int(second)
    raise argparse.ArgumentTypeError(f"a part is K/N with 1 <= K <= N, such as 1/4, got '{text}'")


def positive(text: str) -> int:
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")


def conditions(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in CONDITIONS]
    if unknown:
        known = ", ".join(CONDITIONS)
        raise argparse.ArgumentTypeError(f"the conditions are {known}, got '{unknown[0]}'")
    return chosen


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(
        prog="./dev test",
        description="Runs the tests of both languages: those of the quick level, or those whose "
        "names contain a PATTERN.",
        epilog="Arguments behind -- go to pytest.",
    )
    it.add_argument("patterns", nargs="*", metavar="PATTERN", help="a part of a test's name")
    it.add_argument("--nightly", action="store_true", help="everything (hours); see --part")
    it.add_argument("--part", type=part, metavar="K/N", help="one of N parts of the nightly run")
    it.add_argument("--fresh", action="store_true", help="with --nightly: steps that are done, too")
    it.add_argument("--again", action="store_true", help="what failed last, with the same seed")
    it.add_argument("--repeat", type=positive, metavar="N", help="N times under each condition")
    it.add_argument(
        "--conditions",
        type=conditions,
        default=list(CONDITIONS),
        metavar="A,B",
        help="of --repeat: idle, busy (both cores), one (core); all of them by default",
    )
    it.add_argument("--seed", type=int, help="of what is random in the tests; drawn by default")
    it.add_argument("--workers", type=positive, default=3, help="processes of pytest (3)")
    it.add_argument("--binary", metavar="NAME", help="one program of GoogleTest: cpp, threads, ...")
    it.add_argument(
        "--record",
        action="store_true",
        help="write tests/durations.json, and its table in docs/testing.md",
    )
    return it


def seed_of(arguments: argparse.Namespace) -> int:
    """The run's seed: an argument, the environment, or a new one."""
    given = arguments.seed if arguments.seed is not None else os.environ.get("Q7X2_RANDOM_SEED")
    return int(given) if given is not None else random.SystemRandom().randrange(1, 1 << 31)
