"""`./dev soak [CASES]`: random faults in random work; nothing may hang, be wrong, or leak."""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
from collections import Counter
from contextlib import ExitStack

from tests.faults import soak_case
from tests.faults.resources import Resources
from tests.faults.site import RankLost, Site
from tests.lab import unavailable as lab_unavailable

_REPORT_EVERY = 50

# What a process may hold beyond its most in its first cases, in which it meets its peers.
_FIRST_CASES = 6
_SLACK = Resources(fds=12, threads=4, segments=1, rss=256 << 20)
# The last thread to let go of a group may not have had a processor yet.
_SETTLED_S = 5.0


class LeakWatch:
    """What each process holds after each case, when it has no group."""

    def __init__(self) -> None:
        self._held: dict[str, list[Resources]] = {}

    def look(self, site: Site) -> list[str]:
        leaks = []
        for member in site.members:
            now = site.ask(member, "resources")
            history = self._held.setdefault(member.log.name, [])
            if len(history) >= _FIRST_CASES:
                who, first = f"rank {member.rank}", history[:_FIRST_CASES]
                until = time.monotonic() + _SETTLED_S
                while growth(who, first, now) and time.monotonic() < until:
                    time.sleep(0.05)
                    now = site.ask(member, "resources")
                leaks += growth(who, first, now)
            history.append(now)
        return leaks

    def growth_of_memory(self) -> list[float]:
        """Bytes for each case, of every process that has seen enough of them."""
        return [
            (held[-1].rss - held[_FIRST_CASES].rss) / (len(held) - _FIRST_CASES)
            for held in self._held.values()
            if len(held) >= 2 * _FIRST_CASES
        ]


def growth(who: str, first: list[Resources], now: Resources) -> list[str]:
    """What a process holds more of than in its first cases, beyond the slack: a sentence each."""
    grown = []
    for what in ("fds", "threads", "segments", "rss"):
        before = max(getattr(each, what) for each in first)
        if getattr(now, what) > before + getattr(_SLACK, what):
            grown.append(f"{who} leaks {what}: {getattr(now, what)}, at first at most {before}")
    return grown


class Soak:
    """Runs cases on sites that stay up, one for each number of hosts and ranks."""

    def __init__(self, seed: int, stack: ExitStack) -> None:
        self.seed = seed
        self.failed: list[int] = []
        self.hangs = self.wrong = self.leaks = self.calls = 0
        self.faults: Counter[str] = Counter()
        self.watch = LeakWatch()
        self._stack = stack
        self._sites: dict[tuple[int, int], Site] = {}
        self._kinds = soak_case.KINDS
        if problem := lab_unavailable():
            print(f"without virtual hosts: {problem}")
            self._kinds = tuple(kind for kind in self._kinds if kind[0] == 1)

    def run(self, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        case = soak_case.draw(rng, self._kinds)
        site = self._site(case.hosts, case.ranks_per_host)
        begin = time.monotonic()
        outcome = soak_case.run(site, case, rng)
        try:
            leaks = self.watch.look(site)
        except RankLost as lost:
            lost.member.is_lost = True
            outcome.lost(lost)
            outcome.problems += site.leave()
            leaks = []
        self.faults[case.fault] += 1
        self.hangs += outcome.hangs
        self.wrong += outcome.wrong
        self.leaks += len(leaks)
        self.calls += outcome.calls
        if problems := outcome.problems + leaks:
            self.failed.append(number)
            print(
                f"\ncase {number} failed after {time.monotonic() - begin:.1f} s: {case.describe()}"
            )
            for problem in problems:
                print("  " + problem.replace("\n", "\n    "))
            print(f"  again: ./dev soak --seed {self.seed} --case {number}", flush=True)

    def _site(self, hosts: int, ranks_per_host: int) -> Site:
        kind = (hosts, ranks_per_host)
        if kind not in self._sites:
            site = self._sites[kind] = self._stack.enter_context(Site(hosts, ranks_per_host))
            site.join(timeout=30)  # the first group of a process loads UCX
            site.leave()
        return self._sites[kind]

    def describe(self) -> str:
        return (
            f"{sum(self.faults.values())} cases, {self.calls} rounds of calls: "
            f"{len(self.failed)} cases failed; {self.hangs} hangs, {self.wrong} wrong results, "
            f"{self.leaks} leaks"
        )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("cases", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, help="default: drawn, and printed")
    parser.add_argument("--case", type=int, help="only this one, as it was in a run of that seed")
    args = parser.parse_args(argv)
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    numbers = range(args.cases) if args.case is None else range(args.case, args.case + 1)
    print(f"seed {seed}", flush=True)
    begin = time.monotonic()
    with ExitStack() as stack:
        soak = Soak(seed, stack)
        for number in numbers:
            soak.run(number)
            if (number + 1) % _REPORT_EVERY == 0:
                print(f"{time.monotonic() - begin:.0f} s: {soak.describe()}", flush=True)
    print(f"\n{soak.describe()}; {time.monotonic() - begin:.0f} s; seed {seed}")
    print("faults: " + ", ".join(f"{count} {name}" for name, count in soak.faults.most_common()))
    if growth := soak.watch.growth_of_memory():
        print(f"memory: {sum(growth) / len(growth) / 1024:.0f} KiB for each case and process")
    return 1 if soak.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
