"""The failure contract, by one trial of each event in the main cells; `--slow` tries every cell.

`python -m benchmarks faults` measures the times. Here the bounds are ten times those of the
contract, because a machine that runs tests is busy. What an error must say is checked in full.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from benchmarks.faults import injuries, trial
from benchmarks.faults.contract import NEXT_CALL_S, Cell, Event, pairs
from benchmarks.faults.site import RankLost, Site
from benchmarks.lab import unavailable as lab_unavailable

GENEROUS = 10
SEED = int(os.environ.get("Q7X2_RANDOM_SEED", "1"))
TRIALS = 1

MAIN_CELLS = ("shared memory, one host", "ring, two hosts")
# Events that are tried where a group is made, too.
MAIN_ELSEWHERE = {
    ("killed", "init, one host"),
    ("killed", "init, two hosts"),
    ("killed", "new_group, one host"),
    ("killed", "new_group, two hosts"),
    ("exits", "send and recv, two hosts"),
    ("absent", "init, two hosts"),
    ("absent", "new_group, one host"),
    ("silent", "new_group, two hosts"),
    ("stopped", "init, two hosts"),
    ("stopped", "send and recv, two hosts"),
    ("dead member", "new_group, one host"),
    ("dead member", "new_group, two hosts"),
}


# More trials of an event in a cell: with these, UCX used a connection that it had freed, because it
# was closed by force in the middle of a message (csrc/transport/close_by_force.h).
MORE_TRIALS = {("stopped", "send and recv, two hosts"): (4, 10)}


def cases() -> Iterator[Any]:
    for event, cell in pairs():
        is_main = cell.name in MAIN_CELLS or (event.name, cell.name) in MAIN_ELSEWHERE
        marks = [] if is_main else [pytest.mark.slow]
        yield pytest.param(event, cell, marks=marks, id=f"{event.name}-{cell.name}")


class Sites:
    """One for each number of hosts, made when it is first needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._sites: dict[int, Site] = {}

    def of(self, hosts: int, ranks_per_host: int) -> Site:
        if hosts not in self._sites:
            site = self._stack.enter_context(Site(hosts, ranks_per_host))
            site.join(timeout=30)  # the first group of a process loads UCX
            site.leave()
            self._sites[hosts] = site
        return self._sites[hosts]


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(stack)


@pytest.mark.beyond("gloo", "this is q7x2's contract")
@pytest.mark.parametrize(("event", "cell"), list(cases()))
def test_release(sites: Sites, event: Event, cell: Cell) -> None:
    if cell.hosts > 1 and (problem := lab_unavailable()):
        pytest.skip(problem)
    site = sites.of(cell.hosts, cell.ranks_per_host)
    for number in MORE_TRIALS.get((event.name, cell.name), range(TRIALS)):
        rng = random.Random(f"{SEED}/{event.name}/{cell.name}/{number}")
        verdict = trial.run(site, cell, event, rng)
        text = f"seed {SEED}, trial {number}\n" + "\n".join(verdict.problems)
        assert not verdict.problems, text
        assert verdict.seconds, "nothing was measured"
        assert verdict.next_call <= GENEROUS * NEXT_CALL_S
        for where, seconds in verdict.seconds.items():
            limit = event.limit(where or ("same host" if cell.hosts == 1 else "another host"))
            assert limit is None or seconds <= GENEROUS * limit, f"{where}: {seconds:.3f} s"


@pytest.mark.beyond("gloo", "its groups cannot be made again")
@pytest.mark.skipif(lab_unavailable() is not None, reason=str(lab_unavailable()))
def test_a_group_can_be_made_right_after_connections_broke(sites: Sites) -> None:
    """Nobody has heard of the broken connections when the cards are made."""
    site = sites.of(hosts=2, ranks_per_host=2)
    site.join(timeout=30)
    ranks = [member.rank for member in site.members]
    for _ in range(10):
        injuries.reset(site, host=1)
        epoch = site.epoch()
        for member in site.members:
            member.tell("new_group_works", ranks=ranks, epoch=epoch)
        lost = []
        for member in site.members:
            try:
                site.answer(member, time.monotonic() + 25)
            except RankLost as error:
                lost.append(str(error))
        assert not lost, "\n".join(lost)
    assert not site.leave()
