"""When to return to a level that had to be left: after more good signs each time."""

from __future__ import annotations

from dataclasses import dataclass

_MOST = 1 << 20


@dataclass
class Retry:
    """Counts good signs in a row.

    The level may be left for the n-th time after 2^(n-1) ``first`` good signs at the earliest, so
    of N observations about 2 log2(N) change the level, whatever the observations are.

    Attributes:
        first: Number of good signs that a first return needs.
        needed: Number of good signs that the next return needs; 0: it was never left.
        good: Number of good signs in a row so far.
    """

    first: int
    needed: int = 0
    good: int = 0

    def left(self) -> None:
        """The level had to be left."""
        self.needed = min(2 * self.needed, _MOST) if self.needed else self.first
        self.good = 0

    def sign(self, is_good: bool) -> bool:
        """Count a sign; return whether it is time to return."""
        self.good = self.good + 1 if is_good else 0
        is_time = is_good and self.good >= self.needed
        if is_time:
            self.good = 0
        return is_time
