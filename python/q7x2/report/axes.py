"""Axes that all jobs of a page share, so that equal lengths are equal amounts."""

from __future__ import annotations


class Axes:
    """How far each axis of a page reaches, by name.

    A page of two jobs is drawn twice. The first time, every chart says how far its values reach;
    the second time, it is told how far those of both jobs do.
    """

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}

    def reach(self, name: str, largest: float) -> float:
        """The largest value on the axis ``name`` of all that were given so far."""
        self._largest[name] = max(largest, self._largest.get(name, largest))
        return self._largest[name]

    def begin(self, name: str, smallest: float) -> float:
        """The smallest value on the axis ``name`` of all that were given so far."""
        return -self.reach(f"begin of {name}", -smallest)
