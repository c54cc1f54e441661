"""One trial: ranks at work, an event at a random point, and what became of every rank."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from tests.faults import injuries
from tests.faults.contract import Cell, Event
from tests.faults.site import STORE_HOST, Member, RankLost, Site
from tests.faults.verdict import (
    Verdict,
    judge_error,
    judge_lateness,
    judge_next,
    judge_signatures,
    judge_text,
    names_rank,
)
from tests.faults.workload import Raised, Report, Workload

# A rank that has not returned after so many timeouts of its group hangs.
_HANG_TIMEOUTS = 3
_ROUNDS = 60  # of a workload that must survive
_PAUSE_S = 0.01


@dataclass
class Setup:
    """What one trial drew, and what happened in it."""

    site: Site
    cell: Cell
    event: Event
    rng: random.Random
    victim: int
    workload: Workload
    moment: float = 0.0  # of the event
    end: float = 0.0  # of an event that passes
    reports: dict[int, Report] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def survivors(self) -> list[Member]:
        return [m for m in self.site.members if m.rank != self.victim]


def run(site: Site, cell: Cell, event: Event, rng: random.Random) -> Verdict:
    """Runs one trial and leaves the site fit for the next one."""
    setup = _draw(site, cell, event, rng)
    try:
        _start(setup)
    except RankLost as lost:
        # An earlier trial has left something behind: nothing may be poisoned.
        setup.verdict.complain(f"the group could not be made: {lost}")
        for member in site.members:
            member.is_lost = True
        site.leave()
        return setup.verdict
    try:
        _INJURE[event.name](setup)
        _collect(setup)
        _JUDGE[event.measure](setup)
    finally:
        _mend(setup)
        setup.verdict.problems += site.leave()
    return setup.verdict


def _draw(site: Site, cell: Cell, event: Event, rng: random.Random) -> Setup:
    victim = rng.randrange(site.world)
    roles = {victim: event.role} if event.role else {}
    if event.role == "aborts":
        # Somebody else does not come, so that all others wait.
        roles[(victim + 1) % site.world] = "absent"
    lasts = event.measure == "recovery"
    # Calls of barrier cannot differ.
    ops = [op for op in cell.ops if event.role != "odd" or op != "barrier"]
    workload = Workload(
        stage=cell.stage,
        ops=(rng.choice(ops),),
        count=rng.choice(cell.counts),
        timeout=event.timeout,
        algorithm=cell.algorithm,
        rounds=_ROUNDS if lasts else None,
        pause=_PAUSE_S if lasts else 0.0,
        roles=roles,
        role_after=rng.uniform(0.01, 0.05),
    )
    return Setup(site, cell, event, rng, victim, workload)


def _start(setup: Setup) -> None:
    site = setup.site
    if setup.cell.stage == "init":
        site.prepare()
    else:
        site.join(setup.event.timeout, setup.cell.algorithm)
    if setup.event.name == "dead member":
        return
    for member in site.members:
        member.tell("run", workload=setup.workload)
    begun = [site.answer(m, time.monotonic() + 10)[1] for m in site.members]
    # A point within the first calls, or within the making of a group.
    time.sleep(max(0.0, max(begun) + setup.rng.uniform(0.0, 0.05) - time.monotonic()))


# ---- what happens ------------------------------------------------------------------------------


def _kill(setup: Setup) -> None:
    victim = setup.site.members[setup.victim]
    setup.moment = time.monotonic()
    victim.signal(signal.SIGKILL)
    victim.is_lost = True


def _stop(setup: Setup) -> None:
    setup.moment = time.monotonic()
    setup.site.members[setup.victim].signal(signal.SIGSTOP)


def _stop_and_continue(setup: Setup) -> None:
    _stop(setup)
    time.sleep(setup.rng.uniform(0.3, 2.5))
    setup.end = time.monotonic()
    setup.site.members[setup.victim].signal(signal.SIGCONT)


def _silence(setup: Setup) -> None:
    setup.moment = injuries.silence(setup.site, setup.site.host_of[setup.victim])


def _outage(setup: Setup) -> None:
    host = setup.site.host_of[setup.victim]
    setup.moment = injuries.silence(setup.site, host)
    time.sleep(setup.rng.uniform(0.2, 0.8))
    setup.end = injuries.restore(setup.site, host)


def _lose(setup: Setup) -> None:
    host = setup.site.host_of[setup.victim]
    injuries.lose(setup.site, host, 0.05)
    setup.moment = setup.end = time.monotonic()


def _nothing(setup: Setup) -> None:
    """The victim itself acts, by its role."""


def _dead_member(setup: Setup) -> None:
    _kill(setup)
    time.sleep(setup.rng.uniform(0.0, 0.1))
    for member in setup.survivors:
        member.tell("new_group_raises")


_INJURE = {
    "killed": _kill,
    "exits": _nothing,
    "execs": _nothing,
    "orphans": _nothing,
    "leaves": _nothing,
    "absent": _nothing,
    "silent": _silence,
    "stopped": _stop,
    "continued": _stop_and_continue,
    "outage": _outage,
    "loss": _lose,
    "mismatch": _nothing,
    "abort": _nothing,
    "dead member": _dead_member,
}


def _collect(setup: Setup) -> None:
    """The reports of all ranks that can report; the stopped rank continues when the others have."""
    event, site = setup.event, setup.site
    deadline = time.monotonic() + _HANG_TIMEOUTS * event.timeout + 3
    for member in setup.survivors:
        _receive(setup, member, deadline)
    victim = site.members[setup.victim]
    if event.name == "stopped":
        victim.signal(signal.SIGCONT)
    if event.loses_victim:
        setup.moment = site.answer(victim, deadline)[1]
        victim.is_lost = True
    elif not victim.is_lost:
        _receive(setup, victim, deadline)


def _receive(setup: Setup, member: Member, deadline: float) -> None:
    try:
        kind, report = setup.site.answer(member, deadline)
        assert kind == "done", kind
        setup.reports[member.rank] = report
    except RankLost as lost:
        member.is_lost = True
        setup.verdict.complain(str(lost))


def _mend(setup: Setup) -> None:
    """Undoes what the event has done to the network."""
    if setup.event.name == "silent":
        injuries.end_silence(setup.site, setup.site.host_of[setup.victim])
    if setup.event.name == "loss":
        dropped = injuries.stop_losing(setup.site, setup.site.host_of[setup.victim])
        if dropped == 0:
            setup.verdict.complain("no packet was lost, so this shows nothing")


# ---- what must follow --------------------------------------------------------------------------


def _others(setup: Setup) -> list[Report]:
    return [r for rank, r in sorted(setup.reports.items()) if rank != setup.victim]


def _ends_group(setup: Setup) -> bool:
    """While a group is made, the next call is one of another group."""
    return setup.cell.stage == "call"


def _judge_release(setup: Setup) -> None:
    if setup.event.role == "leaves" and not _acted(setup):
        return
    for report in _others(setup):
        judge_error(setup.verdict, report, [setup.victim], group_ends=_ends_group(setup))
        if report.error is not None:
            host_of = setup.site.host_of
            same = host_of[report.rank] == host_of[setup.victim]
            where = "same host" if same else "another host"
            setup.verdict.add(where, report.error.raised_at - _known_since(setup, report.error))


def _known_since(setup: Setup, error: Raised) -> float:
    """For the others, a rank whose card was not there yet never arrives."""
    if "did not join" in error.text:
        return error.called_at + setup.event.timeout
    return setup.moment


def _judge_together(setup: Setup) -> None:
    {"silent": _judge_silence, "mismatch": _judge_mismatch, "abort": _judge_abort}[
        setup.event.name
    ](setup)


def _judge_silence(setup: Setup) -> None:
    """Both sides of the cut raise, each naming a rank of the other side, or the store's host.

    A rank that was cut off before it has read a card knows no other.
    """
    host_of = setup.site.host_of
    for rank, report in setup.reports.items():
        beyond = [r for r in range(setup.site.world) if host_of[r] != host_of[rank]]
        store = f"the store's host, {setup.site.store[0]} port {setup.site.store[1]}"
        host = store if host_of[rank] != STORE_HOST else ""
        judge_error(setup.verdict, report, beyond, group_ends=_ends_group(setup), host=host)
        if report.error is not None:
            setup.verdict.add("", report.error.raised_at - _known_since(setup, report.error))


def _judge_mismatch(setup: Setup) -> None:
    """At once means: from when the last rank has called."""
    errors = [r.error for r in setup.reports.values() if r.error is not None]
    if errors:
        setup.moment = max(error.called_at for error in errors)
    count = setup.workload.count
    for report in setup.reports.values():
        judge_error(setup.verdict, report, [])
        if report.error is not None:
            odd = count + 8 * setup.site.world
            judge_signatures(setup.verdict, report.rank, report.error, _sizes(setup, count, odd))
            setup.verdict.add("", report.error.raised_at - setup.moment)


def _sizes(setup: Setup, *counts: int) -> list[int]:
    """Elements of the tensor that the user passes, which a message shows."""
    world = setup.site.world
    op = setup.workload.ops[0]
    if op in ("all_reduce", "broadcast", "reduce"):
        return list(counts)
    parts = [-(-count // world) for count in counts]
    return parts if op == "all_gather" else [part * world for part in parts]


def _judge_abort(setup: Setup) -> None:
    if not _acted(setup):
        return
    absent = next(r for r, role in setup.workload.roles.items() if role == "absent")
    for rank, report in setup.reports.items():
        if rank == absent:
            continue
        judge_next(setup.verdict, report)
        if report.error is None:
            setup.verdict.complain(f"rank {rank}: no error was raised")
            continue
        judge_text(setup.verdict, rank, report.error, [])
        if "abort" not in report.error.text:
            setup.verdict.complain(f"rank {rank}: does not say abort: {report.error.text}")
        setup.verdict.add("", report.error.raised_at - setup.moment)


def _judge_deadline(setup: Setup) -> None:
    # A message that is late fails alone, so each rank names the one that it waited for.
    is_message = "exchange" in setup.workload.ops
    for report in _others(setup):
        culprits = [r for r in range(setup.site.world) if r != report.rank]
        judge_error(
            setup.verdict,
            report,
            culprits if is_message else [setup.victim],
            group_ends=_ends_group(setup) and not is_message,
        )
        if report.error is None:
            continue
        judge_lateness(setup.verdict, report.rank, report.error)
        deadline = report.error.called_at + setup.event.timeout
        setup.verdict.add("", report.error.raised_at - deadline)
        late = culprits if is_message else [setup.victim]
        if setup.event.name == "stopped" and not _was_warned(setup, report.rank, late):
            setup.verdict.complain(
                f"rank {report.rank}: no warning named the late rank before: {report.error.text}"
            )


def _was_warned(setup: Setup, rank: int, late: list[int]) -> bool:
    warnings = setup.site.members[rank].output()
    return any(names_rank(warnings, each) for each in late)


def _judge_creation(setup: Setup) -> None:
    for report in _others(setup):
        if report.error is None:
            setup.verdict.complain(f"rank {report.rank}: the group with a dead rank was made")
            continue
        judge_text(setup.verdict, report.rank, report.error, [setup.victim])
        setup.verdict.add("", report.error.raised_at - report.error.called_at)


def _judge_recovery(setup: Setup) -> None:
    for rank, report in setup.reports.items():
        if report.wrong:
            setup.verdict.complain(f"rank {rank}: wrong result: {report.wrong}")
        elif report.error is not None:
            after = f"after an outage of {setup.end - setup.moment:.1f} s"
            text = report.error.text[:300]
            setup.verdict.complain(f"rank {rank}: {report.error.operation} raised {after}: {text}")
        elif report.rounds != _ROUNDS:
            setup.verdict.complain(f"rank {rank}: {report.rounds} of {_ROUNDS} rounds")
        results: list[Any] = [at for at in report.completed if at >= setup.end]
        if results:
            setup.verdict.add("", results[0] - setup.end)


def _acted(setup: Setup) -> bool:
    """Takes the moment of the event from the rank that acted."""
    report = setup.reports.get(setup.victim)
    if report is None or report.acted_at is None:
        setup.verdict.complain(f"rank {setup.victim}: did not play its role")
        return False
    setup.moment = report.acted_at
    return True


_JUDGE = {
    "release": _judge_release,
    "together": _judge_together,
    "deadline": _judge_deadline,
    "creation": _judge_creation,
    "recovery": _judge_recovery,
}
