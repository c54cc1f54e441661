"""Which tests run: the quick level, or all of them with ``--nightly``; and in which order.

The quick level has every feature and every kind of failure, with two ranks and with three. What it
leaves out is marked ``nightly`` with a reason, or is another world size of a test that it has.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import pytest

from tests.runner.durations import recorded

# The number of ranks decides which path an algorithm takes, so these keep all of their sizes.
ALL_SIZES = ("plan/test_algorithms.py",)

# What the compiled stand-ins serve. They are built while other tests run.
NEEDS_STAND_INS = ("devices",)


def addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly", action="store_true", help="also what the quick level leaves out (hours)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nightly(reason): left out of the quick level")


def world_sizes(config: pytest.Config, path: pathlib.Path, sizes: Sequence[int]) -> Sequence[int]:
    """Those of a test's world sizes that this run tries."""
    if config.getoption("--nightly") or str(path).endswith(ALL_SIZES):
        return sizes
    return [size for size in sizes if size in (2, 3)] or [min(sizes)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--nightly"):
        left_out = {item for item in items if item.get_closest_marker("nightly")}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    turns = _turns({_file(item) for item in items})
    items.sort(key=lambda item: turns[_file(item)])  # stable: a file's tests keep their order


def _file(item: pytest.Item) -> str:
    return f"{item.path.parent.name}/{item.path.name}"


def _turns(files: set[str]) -> dict[str, tuple[bool, int]]:
    """A long file and a short one in turns, and what takes about the usual time at the end.

    So no worker is left with a long file, and those with many processes do not all run at once.
    """
    seconds = recorded("python")
    ranked = sorted(files, key=lambda name: (-seconds.get(name, 0.0), name))
    middle = (len(ranked) + 1) // 2
    turns = {name: 2 * turn for turn, name in enumerate(ranked[:middle])}
    turns |= {name: 2 * turn + 1 for turn, name in enumerate(reversed(ranked[middle:]))}
    return {name: (name.split("/")[0] in NEEDS_STAND_INS, turn) for name, turn in turns.items()}
