"""What the controller tells ranks to do, and what they report: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

# What one rank does instead of its call, when its time has come.
ROLES = ("absent", "exits", "execs", "orphans", "leaves", "odd", "aborts")


@dataclass(frozen=True)
class Workload:
    """Rounds of calls; every rank gets the same one.

    `stage` is where the event is to happen: "init" (the default group is made by this workload),
    "new_group" (each round makes a group), or "call". With `rounds` a rank makes that many rounds;
    without, it goes on until a call raises.
    """

    stage: str
    ops: tuple[str, ...]
    count: int
    timeout: float
    algorithm: str = ""
    rounds: int | None = None
    pause: float = 0.0  # seconds between rounds
    async_op: bool = False
    roles: dict[int, str] = field(default_factory=dict)
    role_after: float = 0.0  # seconds after the first call


@dataclass(frozen=True)
class Raised:
    """An exception of a call. Times are of CLOCK_MONOTONIC, one for all processes of a machine."""

    operation: str
    called_at: float
    raised_at: float
    kind: str
    is_typed: bool
    text: str


@dataclass
class Report:
    """What one rank did.

    `error` ended its rounds; `next_error` is what the next call raised. `acted_at` is when it
    played its role.
    """

    rank: int
    rounds: int = 0
    error: Raised | None = None
    next_error: Raised | None = None
    wrong: str = ""
    acted_at: float | None = None
    completed: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Start:
    """A process to fork: a rank, or the keeper of the store if ``name`` is "store"."""

    name: str
    log: str
    env: dict[str, str]
    store: tuple[str, int]
