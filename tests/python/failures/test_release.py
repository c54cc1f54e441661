"""The failure contract, by one trial of each event in the main cells; `--nightly` tries every cell.

What an error must say is checked in full. `python -m tests.faults` measures the times. The
nightly run has bounds for them: ten times those of the contract, for other tests run as well.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import interpreters
import pytest
import seeds

from tests.faults import injuries, trial
from tests.faults.contract import NEXT_CALL_S, Cell, Event, pairs
from tests.faults.site import RankLost, Site
from tests.faults.verdict import Verdict
from tests.lab import unavailable as lab_unavailable

GENEROUS = 10
SEED = seeds.seed()
TRIALS = 1

MAIN_CELLS = ("shared memory, one host", "ring, two hosts")
# Events that are tried where a group is made, too.
MAIN_ELSEWHERE = {
    ("killed", "init, two hosts"),
    ("killed", "new_group, one host"),
    ("exits", "send and recv, two hosts"),
    ("absent", "init, two hosts"),
    ("absent", "new_group, one host"),
    ("silent", "new_group, two hosts"),
    ("stopped", "init, two hosts"),
    ("stopped", "send and recv, two hosts"),
    ("dead member", "new_group, two hosts"),
}


# More trials of an event in a cell: with these, UCX used a connection that it had freed, because it
# was closed by force in the middle of a message (csrc/transport/quirks/close_by_force.h).
MORE_TRIALS = {("stopped", "send and recv, two hosts"): (4, 10)}


def cases(are_all: bool) -> Iterator[Any]:
    for event, cell in pairs():
        is_main = cell.name in MAIN_CELLS or (event.name, cell.name) in MAIN_ELSEWHERE
        if is_main or are_all:
            yield pytest.param(event, cell, id=f"{event.name}-{cell.name}")


class Sites:
    """One for each number of hosts."""

    def __init__(self, stack: ExitStack) -> None:
        self._sites: dict[int, Site] = {}
        for hosts, ranks_per_host in ((1, 3), (2, 2)):
            if hosts > 1 and lab_unavailable():
                continue
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "executable", interpreters.python())
                site = stack.enter_context(Site(hosts, ranks_per_host))
            site.join(timeout=30)  # the first group of a process loads UCX
            site.leave()
            self._sites[hosts] = site

    def of(self, hosts: int) -> Site:
        return self._sites[hosts]


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(stack)


def run_trials(sites: Sites, event: Event, cell: Cell) -> Iterator[Verdict]:
    """Make one trial or more, and check what the ranks said."""
    if cell.hosts > 1 and (problem := lab_unavailable()):
        pytest.skip(problem)
    site = sites.of(cell.hosts)
    for number in MORE_TRIALS.get((event.name, cell.name), range(TRIALS)):
        rng = random.Random(f"{SEED}/{event.name}/{cell.name}/{number}")
        verdict = trial.run(site, cell, event, rng)
        text = f"seed {SEED}, trial {number}\n" + "\n".join(verdict.problems)
        assert not verdict.problems, text
        assert verdict.seconds, "nothing was measured"
        yield verdict


@pytest.mark.beyond("gloo", "this is q7x2's contract")
@pytest.mark.parametrize(("event", "cell"), list(cases(are_all=False)))
def test_release(sites: Sites, event: Event, cell: Cell) -> None:
    assert list(run_trials(sites, event, cell))


@pytest.mark.nightly("an hour: all cells; and the bounds need a quiet machine")
@pytest.mark.beyond("gloo", "this is q7x2's contract")
@pytest.mark.parametrize(("event", "cell"), list(cases(are_all=True)))
def test_release_times(sites: Sites, event: Event, cell: Cell) -> None:
    for verdict in run_trials(sites, event, cell):
        assert verdict.next_call <= GENEROUS * NEXT_CALL_S
        for where, seconds in verdict.seconds.items():
            limit = event.limit(where or ("same host" if cell.hosts == 1 else "another host"))
            assert limit is None or seconds <= GENEROUS * limit, f"{where}: {seconds:.3f} s"


@pytest.mark.beyond("gloo", "its groups cannot be made again")
@pytest.mark.skipif(lab_unavailable() is not None, reason=str(lab_unavailable()))
def test_a_group_can_be_made_right_after_connections_broke(sites: Sites) -> None:
    """Nobody has heard of the broken connections when the peer infos are made."""
    site = sites.of(hosts=2)
    site.join(timeout=30)
    ranks = [member.rank for member in site.members]
    for _ in range(3):
        injuries.reset(site, host=1)
        epoch = site.epoch()
        for member in site.members:
            member.tell("new_group_works", ranks=ranks, epoch=epoch)
        lost = []
        for member in site.members:
            try:
                site.answer(member, time.monotonic() + 60)
            except RankLost as error:
                lost.append(str(error))
        assert not lost, "\n".join(lost)
    assert not site.leave()
