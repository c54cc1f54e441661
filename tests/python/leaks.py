"""A test that leaves something behind fails itself, and what it left is removed.

What a fixture keeps for a module counts when the module ends, and what a session keeps when the
session ends. The standing ranks of ``harness``, and what starts them, may stay.
"""

from __future__ import annotations

from collections.abc import Iterator

import harness
import pytest
import worker_processes
from leftovers import Leftovers, Moment

_LEFTOVERS = pytest.StashKey[Leftovers]()
_HAS_FAILED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    config.stash[_LEFTOVERS] = Leftovers(
        worker_processes.mark_this_process(), harness.RankPools.pids, is_alone=workers == 1
    )


def running(config: pytest.Config, known: set[int]) -> list[str]:
    """One line for each process that a test has started and that still runs, but for ``known``."""
    return config.stash[_LEFTOVERS].running(known)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash[_HAS_FAILED] = item.stash.get(_HAS_FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session", autouse=True)
def _session_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    before = request.config.stash[_LEFTOVERS].now()
    yield
    _fail_if_left(request, before, "the session", not request.session.testsfailed)


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    before = request.config.stash[_LEFTOVERS].now()
    yield
    has_failed = request.session.testsfailed > 0
    _fail_if_left(request, before, "a fixture of this module", not has_failed)
    request.config.stash[_LEFTOVERS].processes.forget_ended()


@pytest.fixture(autouse=True)
def _test_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    before = request.config.stash[_LEFTOVERS].now()
    yield
    # The traceback of a test that failed keeps its variables.
    has_failed = request.node.stash.get(_HAS_FAILED, False)
    _fail_if_left(request, before, "the test", not has_failed)


def _fail_if_left(
    request: pytest.FixtureRequest, before: Moment, owner: str, with_sockets: bool
) -> None:
    left = request.config.stash[_LEFTOVERS].since(before, with_sockets)
    if left:
        for one in left:
            one.remove()
        lines = "\n".join(f"  {one.text}" for one in left)
        pytest.fail(f"{owner} left behind (and it is removed now):\n{lines}", pytrace=False)
