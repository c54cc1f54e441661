"""Old names of arguments and attributes, and the end of a training as a context manager."""

from __future__ import annotations

from typing import Any

import pytest
import q7x2
from q7x2._core.ending import Ending
from q7x2._core.renamed import renamed, renamed_attributes


@renamed(old="new")
@renamed_attributes(before="after")
class Named(Ending):
    def __init__(self, **given: int) -> None:
        self.given = given
        self.ends = 0

    @property
    def broken(self) -> int:
        raise AttributeError("what the property says")

    def finish(self) -> None:
        self.ends += 1


def test_an_old_argument_says_the_new_one() -> None:
    assert Named(new=1).given == {"new": 1}
    with pytest.raises(TypeError, match="Named has no argument 'old': use 'new'"):
        Named(old=1)


def test_an_old_attribute_says_the_new_one() -> None:
    named: Any = Named()
    with pytest.raises(AttributeError, match="Named has no attribute 'before': use 'after'"):
        named.before()
    assert not hasattr(named, "before")
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        named.unknown()
    with pytest.raises(AttributeError, match="what the property says"):
        named.broken()


def test_a_training_ends_with_its_context_unless_an_exception_ends_it() -> None:
    with Named() as named:
        assert named.ends == 0
    assert named.ends == 1
    with pytest.raises(KeyError), named:
        raise KeyError
    assert named.ends == 1


@pytest.mark.parametrize(
    ("taker", "new"),
    [
        (q7x2.cadence.MicroBatches, "compare_every"),
        (q7x2.cadence.DiLoCo, "sync_every"),
        (q7x2.late.StaleSGD, "send_every"),
        (q7x2.policy.Accordion, "decide_every"),
        (q7x2.policy.Accumulate, "reduce_every"),
        (q7x2.policy.BitAllocation, "decide_every"),
        (q7x2.policy.PostLocal, "sync_every"),
        (q7x2.policy.Tighten, "sync_every"),
    ],
)
def test_every_says_what_it_is_called_now(taker: Any, new: str) -> None:
    with pytest.raises(TypeError, match=f"{taker.__name__} has no argument 'every': use '{new}'"):
        taker(every=3)
