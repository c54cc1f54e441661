"""The failure contract as data: the events, the cells, and the limits of docs/reliability.md."""

from __future__ import annotations

from dataclasses import dataclass

SAME_HOST_S = 0.05
OTHER_HOST_S = 0.3
SILENCE_S = 2.0
LATE_S = 0.1

# The next call on a failed group raises at once: what a Python call takes on a busy machine.
NEXT_CALL_S = 0.02


@dataclass(frozen=True)
class Cell:
    """Where the event meets the ranks: what they do, by which algorithm, on how many hosts."""

    name: str
    hosts: int
    ops: tuple[str, ...]
    counts: tuple[int, ...]
    algorithm: str = ""
    stage: str = "call"

    @property
    def ranks_per_host(self) -> int:
        return 3 if self.hosts == 1 else 2


_ANY = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce")
_SIZES = (1 << 10, 1 << 16, 1 << 20)
_ALGORITHMS = {
    "ring": ("ring", ("all_reduce", "reduce_scatter", "all_gather")),
    "tree": ("binomial_tree,double_binary_tree", ("all_reduce", "broadcast", "reduce")),
    "hierarchical": ("hierarchical", ("all_reduce", "broadcast", "reduce", "all_gather")),
    "sra": ("sra", ("all_reduce",)),
}


def _cells() -> list[Cell]:
    cells = []
    for hosts, suffix in ((1, "one host"), (2, "two hosts")):
        for name, (algorithm, ops) in _ALGORITHMS.items():
            if hosts == 1 and name == "hierarchical":
                continue  # within one host there is no hierarchy
            cells.append(Cell(f"{name}, {suffix}", hosts, ops, _SIZES, algorithm))
        if hosts == 1:
            small = (*_ANY, "barrier")
            cells.append(Cell("shared memory, one host", 1, small, (1, 16, 512)))
        cells.append(Cell(f"send and recv, {suffix}", hosts, ("exchange",), _SIZES))
        cells.append(Cell(f"init, {suffix}", hosts, ("all_reduce",), (1 << 10,), stage="init"))
        cells.append(
            Cell(f"new_group, {suffix}", hosts, ("all_reduce",), (1 << 10,), stage="new_group")
        )
    return cells


CELLS = _cells()


@dataclass(frozen=True)
class Event:
    """What happens, and what must follow.

    `measure`:
      release    seconds from the event to the error of a pending call, apart for survivors of the
                 victim's host and of others
      together   the same, of all survivors
      deadline   seconds from the call's own deadline to its error
      creation   seconds from the call of new_group to its error
      recovery   all calls must succeed; seconds from the end of the event to the next result
    `timeout` is the group's. `role`: see workload.ROLES. The victim of some roles is lost for the
    benchmark, too, and says when right before.
    """

    name: str
    title: str
    measure: str
    timeout: float
    role: str = ""
    stages: tuple[str, ...] = ("call",)
    hosts: tuple[int, ...] = (1, 2)
    same_host_s: float | None = SAME_HOST_S
    other_host_s: float | None = OTHER_HOST_S

    @property
    def loses_victim(self) -> bool:
        return self.role in ("exits", "execs", "orphans")

    def fits(self, cell: Cell) -> bool:
        if cell.hosts not in self.hosts or cell.stage not in self.stages:
            return False
        # Two ranks that exchange messages may disagree about their length only.
        return not (self.role == "odd" and "exchange" in cell.ops)

    def limit(self, where: str) -> float | None:
        return self.same_host_s if where == "same host" else self.other_host_s


_EVERYWHERE = ("call", "init", "new_group")
# How long a call waits if nothing tells it of the event: such a trial misses its limit.
_PATIENCE_S = 5.0

EVENTS = [
    Event("killed", "process killed", "release", _PATIENCE_S, stages=_EVERYWHERE),
    Event("exits", "rank raises and exits", "release", _PATIENCE_S, role="exits"),
    Event("execs", "rank becomes another program", "release", _PATIENCE_S, role="execs"),
    Event("orphans", "rank killed, its forked child lives on", "release", _PATIENCE_S,
          role="orphans"),
    Event("leaves", "rank destroys the group early", "release", _PATIENCE_S, role="leaves"),
    Event("absent", "rank never arrives", "deadline", 1.0, role="absent",
          stages=_EVERYWHERE, same_host_s=LATE_S, other_host_s=LATE_S),
    Event("silent", "host or link silent", "together", _PATIENCE_S, hosts=(2,),
          stages=_EVERYWHERE, same_host_s=SILENCE_S, other_host_s=SILENCE_S),
    Event("stopped", "process stopped", "deadline", 3.0, stages=_EVERYWHERE,
          same_host_s=LATE_S, other_host_s=LATE_S),
    Event("continued", "process stopped, continues in time", "recovery", 8.0,
          same_host_s=None, other_host_s=None),
    Event("outage", "short outage of a link", "recovery", 8.0, hosts=(2,),
          same_host_s=None, other_host_s=None),
    Event("loss", "5 % of the packets lost", "recovery", 8.0, hosts=(2,),
          same_host_s=None, other_host_s=None),
    Event("mismatch", "mismatched calls", "together", _PATIENCE_S, role="odd"),
    Event("abort", "abort() from two threads", "together", _PATIENCE_S, role="aborts",
          same_host_s=SAME_HOST_S, other_host_s=SAME_HOST_S),
    Event("dead member", "a group with a dead rank is made", "creation", _PATIENCE_S,
          stages=("new_group",)),
]  # fmt: skip


def pairs() -> list[tuple[Event, Cell]]:
    """Every event in every cell that it can happen in; cells of one site follow each other."""
    return [
        (event, cell)
        for hosts in (1, 2)
        for event in EVENTS
        for cell in CELLS
        if cell.hosts == hosts and event.fits(cell)
    ]
