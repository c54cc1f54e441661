"""Ranks whose arguments do not fit: a typed error within seconds, and never foreign memory.

A rank compares what it can compare by itself before it sends anything. What only a pair of ranks
can compare is compared when their messages meet. If no message passes between them, it is compared
when one of them has waited for half a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import q7x2
import torch
import torch.distributed as dist
from values import FEW
from wrong_calls import CPU, ERRORS, breakable_group, works_still

# More than one slice, of any collective and algorithm.
LARGE = 5 << 20

Call = Callable[[dist.ProcessGroup], object]

pytestmark = pytest.mark.beyond("gloo", "hangs, or does not notice")


def error_of(call: Call, *, later: bool = False) -> str:
    """Make a call of a new group, and return its error.

    With ``later`` one of the calls that follow may raise instead: there, who has noticed tells this
    rank.
    """

    def attempt(group: dist.ProcessGroup) -> None:
        call(group)
        while later:
            dist.barrier(group)

    with (
        breakable_group() as group,
        pytest.raises(dist.DistBackendError, match="disagree") as caught,
    ):
        attempt(group)
    return str(caught.value)


# --- a rank's own piece --------------------------------------------------------------------------


@pytest.mark.parametrize("own", [(0, 3), (3, 0), (2, 3), (3, 2), (1, LARGE), (LARGE, 1)])
@pytest.mark.ranks(*FEW)
def test_own_piece_of_an_all_to_all_single(own: tuple[int, int]) -> None:
    sent, received = own
    me, world = dist.get_rank(), dist.get_world_size()
    inputs = [sent if r == me else 2 for r in range(world)]
    outputs = [received if r == me else 2 for r in range(world)]
    with pytest.raises(ERRORS, match=f"rank {me} sends itself {4 * sent} bytes"):
        dist.all_to_all_single(torch.ones(sum(outputs)), torch.ones(sum(inputs)), outputs, inputs)
    works_still()


@pytest.mark.parametrize("own", [(0, 3), (3, 0), (2, 3), (3, 2)])
@pytest.mark.ranks(*FEW)
def test_own_piece_of_an_all_to_all(own: tuple[int, int]) -> None:
    sent, received = own
    me, world = dist.get_rank(), dist.get_world_size()
    inputs = [torch.ones(sent if r == me else 2) for r in range(world)]
    outputs = [torch.ones(received if r == me else 2) for r in range(world)]
    with pytest.raises(ERRORS, match=f"rank {me} sends itself {4 * sent} bytes"):
        dist.all_to_all(outputs, inputs)
    works_still()


@pytest.mark.ranks(2)
def test_own_piece_in_a_coalesced_call() -> None:
    me = dist.get_rank()
    world = dist.group.WORLD
    inputs, outputs = ([3, 2], [1, 2]) if me == 0 else ([2, 3], [2, 1])
    world._start_coalescing(CPU)
    with pytest.raises(ERRORS, match="sends itself 12 bytes"):
        dist.all_to_all_single(torch.ones(3), torch.ones(5), outputs, inputs)
    world._end_coalescing(CPU)
    works_still()


# --- what one sends and the other expects --------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "expected"), [(0, 3), (3, 0), (0, LARGE), (LARGE, 0), (LARGE, 2 * LARGE), (2, 1)]
)
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.ranks(*FEW)
def test_pieces_of_a_pair_in_an_all_to_all(sent: int, expected: int, single: bool) -> None:
    """Rank 0 sends what rank 1 does not expect."""
    me, world = dist.get_rank(), dist.get_world_size()
    inputs = [sent if (me, r) == (0, 1) else 1 for r in range(world)]
    outputs = [expected if (r, me) == (0, 1) else 1 for r in range(world)]

    def call(group: dist.ProcessGroup) -> None:
        if single:
            output, data = torch.ones(sum(outputs)), torch.ones(sum(inputs))
            dist.all_to_all_single(output, data, outputs, inputs, group)
        else:
            received = [torch.ones(n) for n in outputs]
            dist.all_to_all(received, [torch.ones(n) for n in inputs], group)

    # Rank 1 raises in the call itself. The others may have all that they wait for before.
    error_of(call, later=me != 1)


@pytest.mark.ranks(2, 3)
def test_an_all_to_all_of_nothing_but_what_another_expects() -> None:
    me, world = dist.get_rank(), dist.get_world_size()
    outputs = [4 if (r, me) == (0, 1) else 0 for r in range(world)]
    output, nothing = torch.ones(sum(outputs)), torch.ones(0)
    error_of(
        lambda group: dist.all_to_all_single(output, nothing, outputs, [0] * world, group),
        later=me != 1,
    )


@pytest.mark.ranks(2, 3)
def test_a_broadcast_of_nothing_that_others_wait_for() -> None:
    size = 0 if dist.get_rank() == 0 else 10
    error_of(lambda group: dist.broadcast(torch.ones(size), 0, group), later=size == 0)


@pytest.mark.ranks(2)
def test_parts_of_an_all_gather_in_another_order() -> None:
    """The longest part is equal on both ranks; rank 0's own part is, too."""
    me = dist.get_rank()
    sizes = (LARGE, 2 * LARGE) if me == 0 else (2 * LARGE, LARGE)
    parts = [torch.ones(n) for n in sizes]
    error_of(lambda group: dist.all_gather(parts, torch.ones(LARGE), group), later=True)


@pytest.mark.parametrize("differs", ["longer", "shorter", "empty"])
@pytest.mark.parametrize("collective", ["gather", "scatter"])
@pytest.mark.ranks(*FEW)
def test_a_part_of_another_length_than_the_root_has(collective: str, differs: str) -> None:
    """Lists may be uneven, so only the two ranks can compare."""
    me, world = dist.get_rank(), dist.get_world_size()
    own = {"longer": LARGE, "shorter": 3, "empty": 0}[differs] if me == 1 else 6
    many = [torch.ones(6) for _ in range(world)] if me == 0 else None
    calls: dict[str, Call] = {
        "gather": lambda group: dist.gather(torch.ones(own), many, 0, group),
        "scatter": lambda group: dist.scatter(torch.ones(own), many, 0, group),
    }
    error_of(calls[collective], later=True)


@pytest.mark.ranks(2, 3)
def test_a_list_of_a_reduce_scatter_that_differs_in_one_part() -> None:
    """Rank 1 has another length for the part of rank 0; the longest part is equal."""
    me, world = dist.get_rank(), dist.get_world_size()
    sizes = [7 if me == 1 else 6, LARGE, 3][:world]
    parts = [torch.ones(n) for n in sizes]
    error_of(
        lambda group: dist.reduce_scatter(torch.ones(sizes[me]), parts, group=group), later=True
    )


# --- roots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
@pytest.mark.ranks(2)
def test_a_wrong_root_shows_both_calls(collective: str) -> None:
    """Each rank takes itself for the root."""
    me = dist.get_rank()
    parts = [torch.ones(6) for _ in range(2)]
    calls: dict[str, Call] = {
        "broadcast": lambda group: dist.broadcast(torch.ones(6), me, group),
        "reduce": lambda group: dist.reduce(torch.ones(6), me, group=group),
        "gather": lambda group: dist.gather(torch.ones(6), parts, me, group),
        "scatter": lambda group: dist.scatter(torch.ones(6), parts, me, group),
    }
    text = error_of(calls[collective], later=True)
    for rank in range(2):
        called = rf"rank {rank} \(pid \d+ on [^)]*\) called {collective} \([^)]*, root {rank}\)"
        assert re.search(called, text), text
    assert_says_no_call_twice(text)


def assert_says_no_call_twice(text: str) -> None:
    for call, next_call in re.findall(r"called (.*?\)), and went on to (.*?\))", text):
        assert call != next_call, text


# --- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "collective", ["broadcast", "scatter", "gather", "all_gather", "all_gather_list", "all_to_all"]
)
@pytest.mark.ranks(*FEW)
def test_dtypes_of_equal_width(collective: str) -> None:
    """Rank 1 takes the bytes of floats for integers."""
    me, world = dist.get_rank(), dist.get_world_size()

    def ones(count: int) -> torch.Tensor:
        return torch.ones(count, dtype=torch.int32 if me == 1 else torch.float32)

    def many() -> list[torch.Tensor]:
        return [ones(6) for _ in range(world)]

    parts = many() if me == 0 else None
    calls: dict[str, Call] = {
        "broadcast": lambda group: dist.broadcast(ones(6), 0, group),
        "scatter": lambda group: dist.scatter(ones(6), parts, 0, group),
        "gather": lambda group: dist.gather(ones(6), parts, 0, group),
        "all_gather": lambda group: dist.all_gather_into_tensor(ones(6 * world), ones(6), group),
        "all_gather_list": lambda group: dist.all_gather(many(), ones(6), group),
        "all_to_all": lambda group: dist.all_to_all_single(
            ones(6 * world), ones(6 * world), group=group
        ),
    }
    receiver = {"broadcast": me == 1, "scatter": me == 1, "gather": me == 0}.get(collective, me < 2)
    text = error_of(calls[collective], later=not receiver)
    assert " of float32" in text, text
    assert " of int32" in text, text
    assert_says_no_call_twice(text)


@pytest.mark.parametrize("differs", ["dtype", "op"])
@pytest.mark.ranks(2)
def test_codecs_that_add_integers(differs: str) -> None:
    """Integers and scales are the same; what they stand for, or become, is not."""
    odd = dist.get_rank() == 1
    tensor = torch.ones(64, dtype=torch.bfloat16 if odd and differs == "dtype" else torch.float32)
    op = dist.ReduceOp.AVG if odd and differs == "op" else dist.ReduceOp.SUM
    error_of(lambda group: q7x2.all_reduce(tensor, codec="sumint8", op=op, group=group), later=True)


# --- roots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["broadcast", "scatter", "reduce", "gather"])
@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.ranks(*FEW)
def test_every_rank_names_another_root(collective: str, turn: int) -> None:
    """With ``turn`` 0 each rank takes itself for the root, with 1 its successor.

    Then either all send and none receives, which a later call notices, or all wait and none sends.
    """
    me, world = dist.get_rank(), dist.get_world_size()
    root = (me + turn) % world
    many = [torch.ones(6) for _ in range(world)] if root == me else None
    calls: dict[str, Call] = {
        "broadcast": lambda group: dist.broadcast(torch.ones(6), root, group),
        "scatter": lambda group: dist.scatter(torch.ones(6), many, root, group),
        "reduce": lambda group: dist.reduce(torch.ones(6), root, group=group),
        "gather": lambda group: dist.gather(torch.ones(6), many, root, group),
    }
    all_wait = (turn == 0) == (collective in ("reduce", "gather"))
    error_of(calls[collective], later=not all_wait)


@pytest.mark.ranks(3)
def test_two_roots_and_one_who_follows() -> None:
    """Rank 2 receives from its root, and from the other what it never asked for."""
    root = 1 if dist.get_rank() == 1 else 0
    error_of(lambda group: dist.broadcast(torch.ones(6), root, group), later=True)


@pytest.mark.parametrize("collective", ["broadcast", "scatter"])
@pytest.mark.ranks(3)
def test_two_roots_of_a_long_call(collective: str) -> None:
    """Both roots fill their shared memory, and wait for a rank that never reads it."""
    me, size = dist.get_rank(), 1 << 22
    root = 2 if me == 2 else 0
    many = [torch.ones(size) for _ in range(3)] if root == me else None
    calls: dict[str, Call] = {
        "broadcast": lambda group: dist.broadcast(torch.ones(size), root, group),
        "scatter": lambda group: dist.scatter(torch.ones(size), many, root, group),
    }
    error_of(calls[collective], later=True)


# --- what the error says -------------------------------------------------------------------------


@pytest.mark.parametrize("same", ["collective", "length"])
@pytest.mark.ranks(2, 3)
def test_the_error_has_both_calls(same: str) -> None:
    """On every rank, also where the message that does not fit never came."""
    me = dist.get_rank()
    tensor = torch.ones(100 if me == 0 or same == "length" else 200)

    def call(group: dist.ProcessGroup) -> None:
        if me == 0 or same == "collective":
            dist.all_reduce(tensor, group=group)
        else:
            dist.broadcast(tensor, 0, group)

    text = error_of(call, later=True)
    assert "all_reduce (sequence" in text
    assert "400 bytes" in text
    assert ("800 bytes" if same == "collective" else "broadcast") in text
