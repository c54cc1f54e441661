"""What ``tune`` is asked for: checked on each rank, and the same on all of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeVar

from q7x2._core.groups import resolve_group
from q7x2._core.units import parse_size
from q7x2.fabric import arguments as fabric_arguments

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")

# A barrier has no size to be tuned for. Only the root knows the sizes of a gather or scatter, so
# these have one choice for all.
COLLECTIVES = tuple(
    each for each in fabric_arguments.COLLECTIVES if each not in ("barrier", "gather", "scatter")
)
# Times speak for sizes up to four times as long or short: these for 1 KiB to 64 MiB.
SIZES = ("4K", "64K", "1M", "16M")
_MAX_BYTES = 2**40


@dataclass(frozen=True)
class TuneRequest:
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    candidates: int
    seconds: float
    out: str | None


def checked_request(
    collectives: Any, sizes: Any, candidates: Any, seconds: Any, out: Any
) -> TuneRequest:
    for name, value in (("collectives", collectives), ("sizes", sizes)):
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise TypeError(f"tune: {name}: expected a sequence, got {value!r}")
    names = tuple(collectives)
    for each in names:
        if each not in COLLECTIVES:
            expected = ", ".join(COLLECTIVES)
            raise ValueError(f"tune: collectives: expected some of {expected}; got {each!r}")
    count = _whole_number("candidates", candidates)
    if count < 1:
        raise ValueError(f"tune: candidates: expected at least 1, got {count}")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"tune: seconds: expected a number, got {seconds!r}")
    if not 0 < seconds < math.inf:
        raise ValueError(f"tune: seconds: expected more than 0, got {seconds}")
    if out is not None and not isinstance(out, (str, PathLike)):
        raise TypeError(f"tune: out: expected a path, got {out!r}")
    path = None if out is None else str(fspath(out))
    classes = tuple(sorted({_size_class(each) for each in sizes}))
    return TuneRequest(tuple(dict.fromkeys(names)), classes, count, float(seconds), path)


def _whole_number(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"tune: {name}: expected a whole number, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"tune: {name}: expected a whole number, got {value!r}") from None


def _size_class(size: Any) -> int:
    """The power of two that stands for all sizes with which it shares a choice."""
    try:
        count = parse_size(size) if isinstance(size, str) else _whole_number("sizes", size)
    except ValueError as error:
        raise ValueError(f"tune: sizes: {error}") from None
    if not 1 <= count <= _MAX_BYTES:
        raise ValueError(f"tune: sizes: expected 1 byte to 1024G, got {size!r}")
    return max(1 << (count - 1).bit_length(), 4)  # no less than an element


def on_all(
    group: ProcessGroup | None,
    work: Callable[[], T],
    kind: Any,
) -> list[T]:
    """What ``work`` returns on each rank; where it fails on one, all ranks raise.

    Args:
        kind: The type of what it returns, see :mod:`q7x2._core.json_values`.
    """
    from q7x2._core.exchange import gather

    mine: T | None = None
    failure: Exception | None = None
    try:
        mine = work()
    except Exception as problem:
        failure = problem
    said = None if failure is None else str(failure)
    everybodys = gather((mine, said), tuple[kind | None, str | None], group)
    if failure is not None:
        raise failure
    for rank, (_, said) in enumerate(everybodys):
        if said is not None:
            raise RuntimeError(f"tune: rank {rank} of the group failed: {said}")
    return [value for value, _ in everybodys]


def agreed_request(group: ProcessGroup | None, make: Callable[[], TuneRequest]) -> TuneRequest:
    """What ``make`` returns, equal on all ranks; a collective call."""
    from q7x2._core.agreement import check_agreement

    request: TuneRequest | None = None
    problem: Exception | None = None
    try:
        request = make()
    except Exception as error:
        problem = error
    options = {} if request is None else vars(request)
    check_agreement("request to tune", options, resolve_group(group), problem)
    if request is None:
        assert problem is not None
        raise problem
    return request
