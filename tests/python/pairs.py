"""Cases of a test with several options: all with ``--nightly``, and a few in the quick level.

Most faults need one value of an option, or two values of two options together. So the quick level
runs a covering array: a few cases, in which each two values that may meet do meet.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import pytest

Axis = Mapping[str, Any] | Iterable[Any]
Case = tuple[Hashable, ...]  # a value for each axis, or what stands for it

# By strength.
OTHERS = {1: "each of its values is in another case", 2: "each two of its values meet in others"}


def nightly(value: Any, reason: str) -> Any:
    """A value of a parameter, or a number of ranks, that only ``--nightly`` tries."""
    return pytest.param(value, marks=pytest.mark.nightly(reason))


def pairs(*axes: Axis, allowed: Callable[..., bool] | None = None) -> list[Any]:
    """All combinations of the values of ``axes``, for ``pytest.mark.parametrize``.

    The quick level runs those that ``covering`` chooses. The others are marked nightly.

    Args:
        axes: For each argument of the test its values, or its values by name. Names are the ids.
            A value may be a ``pytest.param`` with marks.
        allowed: Whether a combination may be; called with one value for each axis.
    """
    return _marked(axes, 2, allowed)


def each_value(*axes: Axis, allowed: Callable[..., bool] | None = None) -> list[Any]:
    """The same, but the quick level runs a case for each value, not for each two of them."""
    return _marked(axes, 1, allowed)


def _marked(axes: Sequence[Axis], strength: int, allowed: Callable[..., bool] | None) -> list[Any]:
    lists = [_parameters(axis) for axis in axes]
    picked = {
        case: [parameters[index] for parameters, index in zip(lists, case, strict=True)]
        for case in itertools.product(*(range(len(parameters)) for parameters in lists))
    }
    cases = [
        case
        for case, parameters in picked.items()
        if allowed is None or allowed(*(each.values[0] for each in parameters))
    ]
    chosen = set(covering(cases, strength))
    others = pytest.mark.nightly(OTHERS[strength])
    return [
        pytest.param(
            *(each.values[0] for each in picked[case]),
            id="-".join(each.id for each in picked[case]),
            marks=[
                *(mark for each in picked[case] for mark in each.marks),
                *([] if case in chosen else [others]),
            ],
        )
        for case in cases
    ]


def covering(cases: Sequence[Case], strength: int = 2) -> list[Case]:
    """A few of ``cases`` in which each two values meet that meet in any of them.

    With a ``strength`` of 1: in which each value occurs.

    The next one is always the first of those in which the most pairs meet that did not meet yet.
    """
    missing = {pair for case in cases for pair in pairs_of(case, strength)}
    # Gains only fall, so what a case would have gained before is a bound of what it gains now.
    bounds = [(-len(missing), index) for index in range(len(cases))]
    chosen = []
    while missing:
        bound, index = bounds[0]
        gain = len(missing.intersection(pairs_of(cases[index], strength)))
        if gain == -bound:
            heapq.heappop(bounds)
            chosen.append(cases[index])
            missing.difference_update(pairs_of(cases[index], strength))
        else:
            heapq.heapreplace(bounds, (-gain, index))
    return chosen


def pairs_of(case: Case, strength: int = 2) -> list[tuple[tuple[int, Hashable], ...]]:
    """What meets in ``case``: each two of its values; with a ``strength`` of 1, each value."""
    return list(itertools.combinations(enumerate(case), min(strength, len(case))))


def _parameters(axis: Axis) -> list[Any]:
    if isinstance(axis, Mapping):
        return [pytest.param(value, id=name) for name, value in axis.items()]
    made = (v if isinstance(v, type(pytest.param())) else pytest.param(v) for v in axis)
    return [pytest.param(*p.values, id=p.id or _name(p.values[0]), marks=p.marks) for p in made]


def _name(value: Any) -> str:
    named = value if isinstance(value, type) else getattr(value, "__name__", None)
    return str(named or value).removeprefix("torch.")
