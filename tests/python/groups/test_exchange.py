"""What ranks tell each other about their options: JSON that is checked, and nothing that runs."""

from __future__ import annotations

import pathlib
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from q7x2._core.exchange import broadcast, gather
from q7x2._core.json_values import MalformedMessageError, dumps, loads


@dataclass(frozen=True)
class Plan:
    name: str
    sizes: tuple[int, ...]
    seconds: float = 0.0
    out: str | None = None


class Pair(NamedTuple):
    own: float
    pieces: dict[int, float]


VALUES: list[tuple[Any, Any]] = [
    ("text \u00e9", str),
    (-(2**62), int),
    (0.1, float),
    (3, float),
    (True, bool),
    (None, type(None)),
    (None, str | None),
    (["a", "b"], list[str]),
    ((1, 2, 3), tuple[int, ...]),
    ((1, "a", None), tuple[int, str, float | None]),
    ({"a": [1.5]}, dict[str, list[float]]),
    ({("a", 4): [Plan("p", (1,))]}, dict[tuple[str, int], list[Plan]]),
    (Plan("p", (1, 2), 0.5, "file"), Plan),
    (Pair(1.0, {2: 0.5, 4: float("inf")}), Pair),
    ({"anything": [1, "a", None, {"b": True}]}, dict[str, Any]),
]


@pytest.mark.parametrize(("value", "kind"), VALUES, ids=lambda each: str(each)[:40])
def test_values_come_back_as_they_were(value: Any, kind: Any) -> None:
    made = loads(dumps(value, kind), kind)
    assert made == value
    assert type(made) is (float if kind is float else type(value))


MALFORMED: list[tuple[str, Any, str]] = [
    ("", str, "expected JSON"),
    ("\x80\x04K\x01.", int, "expected JSON"),
    ("[" * 100_000, list[str], "expected JSON"),
    ("1", str, "expected a text, got 1"),
    ("true", int, "expected an integer, got true"),
    ("1.5", int, "expected an integer"),
    ('"1"', float, "expected a number"),
    ('{"a": 1}', list[str], "expected a list"),
    ('["a", 1]', list[str], r"value\[1\]: expected a text, got 1"),
    ("[1]", tuple[int, int], "expected 2 values"),
    ('{"name": "p"}', Plan, "expected an object of name, sizes, seconds, out"),
    ('{"name": "p", "name": "q"}', Plan, 'the field "name" is named twice'),
    ('{"name": 1, "sizes": [], "seconds": 0, "out": null}', Plan, r"\.name: expected a text"),
    ('[["a", 4]]', dict[tuple[str, int], str], "expected 2 values"),
    ('[[[["a"]]]]', list[list[str]], r"\[0\]\[0\]: expected a text"),
]


@pytest.mark.parametrize(("text", "kind", "said"), MALFORMED, ids=lambda each: str(each)[:30])
def test_other_texts_are_refused(text: str, kind: Any, said: str) -> None:
    with pytest.raises(MalformedMessageError, match=said):
        loads(text.encode(), kind)


@pytest.mark.ranks(3)
def test_all_ranks_hear_each_other(world_size: int) -> None:
    rank = dist.get_rank()
    mine = Plan("x" * rank, tuple(range(rank)))
    expected = [Plan("x" * r, tuple(range(r))) for r in range(world_size)]
    assert gather(mine, Plan, dist.group.WORLD) == expected
    assert gather(mine, Plan, None) == expected
    assert broadcast(mine if rank == 0 else None, Plan, dist.group.WORLD) == expected[0]


class Exploit:
    """Runs code in whoever unpickles it."""

    def __init__(self, mark: pathlib.Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return pathlib.Path.touch, (self.mark,)


@pytest.mark.ranks(2)
def test_a_pickle_runs_nothing(world_size: int, shared: str) -> None:
    """Rank 1 sends one in the place of its text, as ``all_gather_object`` would."""
    mark = pathlib.Path(shared) / "ran"
    if dist.get_rank() == 1:
        data = torch.frombuffer(bytearray(pickle.dumps(Exploit(mark))), dtype=torch.uint8)
        count = torch.tensor([data.numel()])
        dist.all_gather([torch.zeros_like(count) for _ in range(world_size)], count)
        dist.all_gather([torch.zeros_like(data) for _ in range(world_size)], data)
    else:
        with pytest.raises(MalformedMessageError, match="rank 1 of the group sends what q7x2"):
            gather("", str, dist.group.WORLD)
    assert not mark.exists()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("length", [-1, 0, 2**40])
def test_lengths_are_checked_before_memory_is_taken(world_size: int, length: int) -> None:
    if dist.get_rank() == 1:
        count = torch.tensor([length])
        dist.all_gather([torch.zeros_like(count) for _ in range(world_size)], count)
    else:
        with pytest.raises(MalformedMessageError, match=f"rank 1 of the group sends {length}"):
            gather("", str, dist.group.WORLD)
