"""What the reports of the survivors say about a trial: times, and everything that is not right."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tests.faults.workload import Raised, Report

# What an error of a call may name it.
_NAMES: dict[str, tuple[str, ...]] = {
    "exchange": ("send", "recv"),
    "coalesced": ("all_reduce",),
    "coded": ("all_reduce",),
    "blocks": ("all_reduce",),
    "rows": ("all_reduce",),
    "init": ("group",),
    "new_group": ("group",),
}

# Words by which an error declares a rank dead.
_DEAD = re.compile(r"\b(died|is dead|failed|has ended|killed)\b")


@dataclass
class Verdict:
    """`seconds` by "same host" and "another host", or "" if they are not told apart.

    `next_call` is how long the next call took to raise.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    next_call: float = 0.0
    problems: list[str] = field(default_factory=list)

    def add(self, where: str, seconds: float) -> None:
        """The slowest survivor counts."""
        self.seconds[where] = max(seconds, self.seconds.get(where, seconds))

    def complain(self, text: str) -> None:
        self.problems.append(text)


def judge_error(
    verdict: Verdict,
    report: Report,
    culprits: Collection[int],
    *,
    group_ends: bool = True,
    host: str = "",
) -> None:
    """The error of a survivor: typed, with a culprit and the operation, and again next time.

    It need not name anybody if there are no `culprits`; `host`: or their host, by what it says.
    """
    if report.wrong:
        verdict.complain(f"rank {report.rank}: wrong result: {report.wrong}")
    error = report.error
    if error is None:
        verdict.complain(f"rank {report.rank}: no error was raised")
        return
    judge_text(verdict, report.rank, error, culprits, host)
    if group_ends:
        judge_next(verdict, report)


def judge_text(
    verdict: Verdict, rank: int, error: Raised, culprits: Collection[int], host: str = ""
) -> None:
    shown = f"{error.kind}: {error.text[:300]}"
    if not error.is_typed:
        verdict.complain(f"rank {rank}: not a DistBackendError: {shown}")
    names_host = bool(host) and host in error.text
    if culprits and not (names_host or any(names_rank(error.text, each) for each in culprits)):
        verdict.complain(f"rank {rank}: does not name rank {sorted(culprits)}: {shown}")
    if not names_operation(error.text, error.operation):
        verdict.complain(f"rank {rank}: does not name {error.operation}: {shown}")


def judge_next(verdict: Verdict, report: Report) -> None:
    after = report.next_error
    if report.error is None or report.error.operation in ("init", "new_group"):
        return  # there is no group for a next call
    if after is None:
        verdict.complain(f"rank {report.rank}: the next call succeeded")
    else:
        verdict.next_call = max(verdict.next_call, after.raised_at - after.called_at)


def judge_lateness(verdict: Verdict, rank: int, error: Raised) -> None:
    """A rank that is late must not be called dead."""
    if word := _DEAD.search(error.text):
        verdict.complain(f"rank {rank}: takes the late rank for dead ('{word[0]}'): {error.text}")


def judge_signatures(verdict: Verdict, rank: int, error: Raised, sizes: Sequence[int]) -> None:
    """The error shows both calls; `sizes` are their elements, which a text may give in bytes."""
    for count in sizes:
        if not re.search(rf"\b({count}|{4 * count})\b", error.text):
            verdict.complain(
                f"rank {rank}: does not show the call of {count} elements: {error.text}"
            )


def names_rank(text: str, rank: int) -> bool:
    """ "rank 2", or among others: "ranks 1, 2 and 3"."""
    if re.search(rf"\brank {rank}\b", text, re.IGNORECASE):
        return True
    lists = re.findall(r"\branks ((?:\d+(?:, | and )?)+)", text, re.IGNORECASE)
    return any(str(rank) in re.findall(r"\d+", each) for each in lists)


def names_operation(text: str, operation: str) -> bool:
    return any(name in text for name in _NAMES.get(operation, (operation,)))
