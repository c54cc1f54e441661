"""A random case of the soak: random work on random ranks, a random fault at a random time.

What must follow depends on the fault only. If it is fatal, every rank that is left raises a typed
error. If it passes, every call succeeds. After a reset a rank may do either. In all cases a call
that succeeds is right, no rank hangs, and the ranks that are left make a group that works.
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass, field

from tests.faults import injuries
from tests.faults.site import Member, RankLost, Site
from tests.faults.workload import Report, Workload

# Hosts and ranks per host.
KINDS = ((1, 2), (1, 3), (1, 4), (2, 1), (2, 2))
FATAL = ("kill", "exits", "leaves", "aborts", "odd", "stop for long")
PASSING = ("none", "stop")
BETWEEN_HOSTS_FATAL = ("silence",)
BETWEEN_HOSTS_PASSING = ("outage", "slow link", "loss", "garbage")
EITHER = ("reset",)
_ROLES = ("exits", "leaves", "aborts", "odd")

_OPS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "reduce",
    "barrier",
    "exchange",
    "coalesced",
    "coded",
    "blocks",
    "rows",
)
_ALGORITHMS = ("", "", "ring", "sra", "binomial_tree,double_binary_tree", "hierarchical")
_MOST_ELEMENTS = {1: 1 << 21, 2: 1 << 18}
_MOST_ELEMENTS_SLOW = 1 << 14
_TIMEOUT_S = 4.0  # of a group that a fatal fault ends
_LATE_TIMEOUT_S = 1.0
_PASSING_TIMEOUT_S = 30.0
_HANG_S = 10.0
# An outage that a busy machine makes longer than this may be taken for a silent link.
_LONGEST_OUTAGE_S = 1.5


@dataclass(frozen=True)
class Case:
    """What a seed draws; nothing else decides what happens."""

    hosts: int
    ranks_per_host: int
    fault: str
    victim: int
    delay: float
    lasts: float
    workload: Workload

    @property
    def passes(self) -> bool:
        return self.fault in PASSING + BETWEEN_HOSTS_PASSING

    def describe(self) -> str:
        work = self.workload
        size = "" if work.ops == ("barrier",) else f" of {work.count} elements"
        return (
            f"{self.fault} of rank {self.victim} after {self.delay * 1e3:.0f} ms, "
            f"{self.hosts} x {self.ranks_per_host} ranks, {work.stage}: "
            f"{', '.join(work.ops)}{size}, algorithm {work.algorithm or 'any'}"
            f"{', async' if work.async_op else ''}"
        )


def draw(rng: random.Random, kinds: tuple[tuple[int, int], ...] = KINDS) -> Case:
    hosts, ranks_per_host = rng.choice(kinds)
    world = hosts * ranks_per_host
    faults = FATAL + PASSING
    if hosts > 1:
        faults += BETWEEN_HOSTS_FATAL + BETWEEN_HOSTS_PASSING + EITHER
    fault = rng.choice(faults)
    ops = tuple(rng.sample(_OPS, rng.randint(1, 3)))
    stage = rng.choice(("call", "call", "call", "new_group", "init"))
    if fault == "odd":
        # What two ranks may disagree about; pairs of messages have no further partner to tell.
        ops, stage = (rng.choice(_OPS[:6]),), "call"
    victim = rng.randrange(world)
    most = _MOST_ELEMENTS_SLOW if fault in ("slow link", "loss") else _MOST_ELEMENTS[hosts]
    roles = {victim: fault} if fault in _ROLES else {}
    if fault == "aborts":
        roles[(victim + 1) % world] = "absent"
    timeout = _LATE_TIMEOUT_S if fault == "stop for long" else _TIMEOUT_S
    goes_on = fault in FATAL + BETWEEN_HOSTS_FATAL
    workload = Workload(
        stage=stage,
        ops=ops,
        count=round(most ** rng.random()),
        timeout=timeout if goes_on else _PASSING_TIMEOUT_S,
        algorithm=rng.choice(_ALGORITHMS),
        rounds=None if goes_on else rng.randint(5, 20),
        pause=0.0 if goes_on else 0.02,
        async_op=rng.random() < 0.3,
        roles=roles,
        role_after=rng.uniform(0.0, 0.1),
    )
    delay, lasts = rng.uniform(0.0, 0.3), rng.uniform(0.05, 0.6)
    return Case(hosts, ranks_per_host, fault, victim, delay, lasts, workload)


@dataclass
class Outcome:
    """`hangs` and `wrong` are among the `problems`; they are counted apart."""

    problems: list[str] = field(default_factory=list)
    hangs: int = 0
    wrong: int = 0
    calls: int = 0

    def lost(self, error: RankLost) -> None:
        self.hangs += "hangs" in str(error).splitlines()[0]
        self.problems.append(str(error))


def run(site: Site, case: Case, rng: random.Random) -> Outcome:
    """Runs a case and leaves the site with a live process for each rank, without groups."""
    outcome = Outcome()
    try:
        _start(site, case)
    except RankLost as lost:
        outcome.lost(lost)
        for member in site.members:
            member.is_lost = True
        site.leave()
        return outcome
    reports: dict[int, Report] = {}
    try:
        time.sleep(case.delay)
        passes = _begin(site, case, rng) < _LONGEST_OUTAGE_S and case.passes
        _collect(site, case, outcome, reports)
    finally:
        _end(site, case)
    for report in reports.values():
        outcome.calls += report.rounds
        _judge(case, passes, report, outcome)
    _use_again(site, case, outcome)
    outcome.problems += site.leave()
    return outcome


def _start(site: Site, case: Case) -> None:
    if case.workload.stage == "init":
        site.prepare()
    else:
        site.join(case.workload.timeout, case.workload.algorithm)
    for member in site.members:
        member.tell("run", workload=case.workload)
    for member in site.members:
        site.answer(member, time.monotonic() + _HANG_S)


def _begin(site: Site, case: Case, rng: random.Random) -> float:
    """The fault; one that passes is over when this returns, if its end is not that of the case.

    Returns:
        How many seconds it took at most, if it is over.
    """
    begin = time.monotonic()
    victim = site.members[case.victim]
    host = victim.host
    if case.fault == "kill":
        victim.signal(signal.SIGKILL)
        victim.is_lost = True
    elif case.fault == "stop for long":
        victim.signal(signal.SIGSTOP)
    elif case.fault == "stop":
        victim.signal(signal.SIGSTOP)
        time.sleep(case.lasts)
        victim.signal(signal.SIGCONT)
    elif case.fault == "silence":
        injuries.silence(site, host)
    elif case.fault == "outage":
        injuries.silence(site, host)
        time.sleep(case.lasts)
        injuries.restore(site, host)
    elif case.fault == "slow link":
        injuries.slow_down(site, host, "5mbit")
    elif case.fault == "loss":
        injuries.lose(site, host, 0.05)
    elif case.fault == "reset":
        injuries.reset(site, host)
    elif case.fault == "garbage":
        injuries.send_garbage(site, host, rng)
    return time.monotonic() - begin


def _end(site: Site, case: Case) -> None:
    host = site.host_of[case.victim]
    if case.fault == "silence":
        injuries.end_silence(site, host)
    elif case.fault == "slow link":
        injuries.restore_rate(site, host)
    elif case.fault == "loss":
        injuries.stop_losing(site, host)


def _collect(site: Site, case: Case, outcome: Outcome, reports: dict[int, Report]) -> None:
    victim = site.members[case.victim]
    deadline = time.monotonic() + case.workload.timeout + _HANG_S
    for member in site.members:
        if member is not victim:
            _receive(site, member, deadline, outcome, reports)
    if case.fault == "stop for long":
        victim.signal(signal.SIGCONT)
    if case.fault == "exits":
        _expect_exit(site, victim, deadline, outcome)
    elif not victim.is_lost:
        _receive(site, victim, deadline, outcome, reports)


def _receive(
    site: Site, member: Member, deadline: float, outcome: Outcome, reports: dict[int, Report]
) -> None:
    try:
        reports[member.rank] = site.answer(member, deadline)[1]
    except RankLost as lost:
        member.is_lost = True
        outcome.lost(lost)


def _expect_exit(site: Site, victim: Member, deadline: float, outcome: Outcome) -> None:
    """The exit code of an exception, and not a signal or a hang."""
    try:
        site.answer(victim, deadline)
        status = site.exit_status(victim, patience=_HANG_S)
        if status is None:
            raise site.hang(victim)
        if status != 1:
            outcome.problems.append(f"rank {victim.rank} exited with {status}, expected 1")
    except RankLost as lost:
        outcome.lost(lost)
    victim.is_lost = True


def _judge(case: Case, passes: bool, report: Report, outcome: Outcome) -> None:
    where = f"rank {report.rank}"
    if report.wrong:
        outcome.wrong += 1
        outcome.problems.append(f"{where}: wrong result: {report.wrong}")
    error = report.error
    if error is not None:
        shown = f"{error.operation}: {error.kind}: {error.text[:400]}"
        if passes:
            outcome.problems.append(f"{where}: the fault passes, but {shown}")
        elif not error.is_typed:
            outcome.problems.append(f"{where}: not a DistBackendError: {shown}")
        has_failed_group = error.operation != "init" and case.workload.stage != "new_group"
        if report.next_error is None and has_failed_group:
            outcome.problems.append(f"{where}: the call after an error succeeded")
    elif not report.wrong and _must_raise(case, report.rank):
        outcome.problems.append(f"{where}: no error was raised")


def _must_raise(case: Case, rank: int) -> bool:
    role = case.workload.roles.get(rank, "")
    if role in ("leaves", "absent"):
        return False
    return case.fault in FATAL + BETWEEN_HOSTS_FATAL


def _use_again(site: Site, case: Case, outcome: Outcome) -> None:
    """The ranks that are left make a group of their own beside the failed one."""
    left = [m.rank for m in site.members if not m.is_lost]
    if case.workload.roles.get(case.victim) == "leaves":
        left.remove(case.victim)
    if case.workload.stage == "init" or len(left) < 2:
        return
    epoch = site.epoch()
    for rank in left:
        site.members[rank].tell("new_group_works", ranks=left, epoch=epoch)
    deadline = time.monotonic() + 25
    for rank in left:
        try:
            site.answer(site.members[rank], deadline)
        except RankLost as lost:
            outcome.lost(lost)
            site.members[rank].is_lost = True
