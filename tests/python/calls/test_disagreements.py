"""Ranks whose arguments do not fit: a typed error within seconds, and never foreign memory.

A rank compares what it can compare by itself before it sends anything. What only a pair of ranks
can compare is compared when their messages meet. If no message passes between them, it is compared
when one of them has waited for half a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import q7x2
import torch
import torch.distributed as dist
from wrong_calls import CPU, ERRORS, works_still

# Far above what noticing takes, far below the groups' timeout of a minute.
PROMPT = 20.0

# More than one slice, of any collective and algorithm.
LARGE = 5 << 20

pytestmark = pytest.mark.beyond("gloo", "hangs, or does not notice")


def raises_promptly(call: Callable[[], object], *, later: bool = False) -> None:
    """With ``later`` in one of the calls that follow: there, who has noticed tells this rank."""
    start = time.monotonic()

    def attempt() -> None:
        call()
        while later and time.monotonic() - start < PROMPT:
            dist.barrier()

    with pytest.raises(dist.DistBackendError, match="disagree") as caught:
        attempt()
    assert time.monotonic() - start < PROMPT
    assert "Timed out" not in str(caught.value)


# --- a rank's own piece --------------------------------------------------------------------------


@pytest.mark.parametrize("own", [(0, 3), (3, 0), (2, 3), (3, 2), (1, LARGE), (LARGE, 1)])
@pytest.mark.ranks(2, 3)
def test_own_piece_of_an_all_to_all_single(own: tuple[int, int]) -> None:
    sent, received = own
    me, world = dist.get_rank(), dist.get_world_size()
    inputs = [sent if r == me else 2 for r in range(world)]
    outputs = [received if r == me else 2 for r in range(world)]
    with pytest.raises(ERRORS, match=f"rank {me} sends itself {4 * sent} bytes"):
        dist.all_to_all_single(torch.ones(sum(outputs)), torch.ones(sum(inputs)), outputs, inputs)
    works_still()


@pytest.mark.parametrize("own", [(0, 3), (3, 0), (2, 3), (3, 2)])
@pytest.mark.ranks(2, 3)
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
@pytest.mark.ranks(2, 3, fresh=True, timeout=60)
def test_pieces_of_a_pair_in_an_all_to_all(sent: int, expected: int, single: bool) -> None:
    """Rank 0 sends what rank 1 does not expect."""
    me, world = dist.get_rank(), dist.get_world_size()
    inputs = [sent if (me, r) == (0, 1) else 1 for r in range(world)]
    outputs = [expected if (r, me) == (0, 1) else 1 for r in range(world)]

    def call() -> None:
        if single:
            output, data = torch.ones(sum(outputs)), torch.ones(sum(inputs))
            dist.all_to_all_single(output, data, outputs, inputs)
        else:
            dist.all_to_all([torch.ones(n) for n in outputs], [torch.ones(n) for n in inputs])

    # Rank 1 raises in the call itself. The others may have all that they wait for before.
    raises_promptly(call, later=me != 1)


@pytest.mark.ranks(2, 3, fresh=True, timeout=60)
def test_an_all_to_all_of_nothing_but_what_another_expects() -> None:
    me, world = dist.get_rank(), dist.get_world_size()
    outputs = [4 if (r, me) == (0, 1) else 0 for r in range(world)]
    output, nothing = torch.ones(sum(outputs)), torch.ones(0)
    raises_promptly(
        lambda: dist.all_to_all_single(output, nothing, outputs, [0] * world),
        later=me != 1,
    )


@pytest.mark.ranks(2, 3, fresh=True, timeout=60)
def test_a_broadcast_of_nothing_that_others_wait_for() -> None:
    size = 0 if dist.get_rank() == 0 else 10
    raises_promptly(lambda: dist.broadcast(torch.ones(size), 0), later=size == 0)


@pytest.mark.ranks(2, fresh=True, timeout=60)
def test_parts_of_an_all_gather_in_another_order() -> None:
    """The longest part is equal on both ranks; rank 0's own part is, too."""
    me = dist.get_rank()
    sizes = (LARGE, 2 * LARGE) if me == 0 else (2 * LARGE, LARGE)
    raises_promptly(
        lambda: dist.all_gather([torch.ones(n) for n in sizes], torch.ones(LARGE)),
        later=True,
    )


# --- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "collective", ["broadcast", "scatter", "gather", "all_gather", "all_gather_list", "all_to_all"]
)
@pytest.mark.ranks(2, 3, fresh=True, timeout=60)
def test_dtypes_of_equal_width(collective: str) -> None:
    """Rank 1 takes the bytes of floats for integers."""
    me, world = dist.get_rank(), dist.get_world_size()

    def ones(count: int) -> torch.Tensor:
        return torch.ones(count, dtype=torch.int32 if me == 1 else torch.float32)

    def many() -> list[torch.Tensor]:
        return [ones(6) for _ in range(world)]

    calls: dict[str, Callable[[], object]] = {
        "broadcast": lambda: dist.broadcast(ones(6), 0),
        "scatter": lambda: dist.scatter(ones(6), many() if me == 0 else None, src=0),
        "gather": lambda: dist.gather(ones(6), many() if me == 0 else None, dst=0),
        "all_gather": lambda: dist.all_gather_into_tensor(ones(6 * world), ones(6)),
        "all_gather_list": lambda: dist.all_gather(many(), ones(6)),
        "all_to_all": lambda: dist.all_to_all_single(ones(6 * world), ones(6 * world)),
    }
    receiver = {"broadcast": me == 1, "scatter": me == 1, "gather": me == 0}.get(collective, me < 2)
    raises_promptly(calls[collective], later=not receiver)


@pytest.mark.parametrize("differs", ["dtype", "op"])
@pytest.mark.ranks(2, fresh=True, timeout=60)
def test_codecs_that_add_integers(differs: str) -> None:
    """Integers and scales are the same; what they stand for, or become, is not."""
    odd = dist.get_rank() == 1
    tensor = torch.ones(64, dtype=torch.bfloat16 if odd and differs == "dtype" else torch.float32)
    op = dist.ReduceOp.AVG if odd and differs == "op" else dist.ReduceOp.SUM
    raises_promptly(lambda: q7x2.all_reduce(tensor, "sumint8", op=op), later=True)


# --- roots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["broadcast", "scatter", "reduce", "gather"])
@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.ranks(2, 3, fresh=True, timeout=60)
def test_every_rank_names_another_root(collective: str, turn: int) -> None:
    """With ``turn`` 0 each rank takes itself for the root, with 1 its successor.

    Then either all send and none receives, which a later call notices, or all wait and none sends.
    """
    me, world = dist.get_rank(), dist.get_world_size()
    root = (me + turn) % world
    many = [torch.ones(6) for _ in range(world)] if root == me else None
    calls: dict[str, Callable[[], object]] = {
        "broadcast": lambda: dist.broadcast(torch.ones(6), root),
        "scatter": lambda: dist.scatter(torch.ones(6), many, src=root),
        "reduce": lambda: dist.reduce(torch.ones(6), root),
        "gather": lambda: dist.gather(torch.ones(6), many, dst=root),
    }
    all_wait = (turn == 0) == (collective in ("reduce", "gather"))
    raises_promptly(calls[collective], later=not all_wait)


@pytest.mark.ranks(3, fresh=True, timeout=60)
def test_two_roots_and_one_who_follows() -> None:
    """Rank 2 receives from its root, and from the other what it never asked for."""
    me = dist.get_rank()
    raises_promptly(lambda: dist.broadcast(torch.ones(6), 1 if me == 1 else 0), later=True)


@pytest.mark.parametrize("collective", ["broadcast", "scatter"])
@pytest.mark.ranks(3, fresh=True, timeout=60)
def test_two_roots_of_a_long_call(collective: str) -> None:
    """Both roots fill their shared memory, and wait for a rank that never reads it."""
    me, size = dist.get_rank(), 1 << 22
    root = 2 if me == 2 else 0
    many = [torch.ones(size) for _ in range(3)] if root == me else None
    calls: dict[str, Callable[[], object]] = {
        "broadcast": lambda: dist.broadcast(torch.ones(size), root),
        "scatter": lambda: dist.scatter(torch.ones(size), many, src=root),
    }
    raises_promptly(calls[collective], later=True)


# --- what the error says -------------------------------------------------------------------------


@pytest.mark.parametrize("same", ["collective", "length"])
@pytest.mark.ranks(2, 3, fresh=True, timeout=60)
def test_the_error_has_both_calls(same: str) -> None:
    """On every rank, also where the message that does not fit never came."""
    me = dist.get_rank()
    tensor = torch.ones(100 if me == 0 or same == "length" else 200)

    def attempt() -> None:
        start = time.monotonic()
        if me == 0 or same == "collective":
            dist.all_reduce(tensor)
        else:
            dist.broadcast(tensor, 0)
        while time.monotonic() - start < PROMPT:
            dist.barrier()

    with pytest.raises(dist.DistBackendError, match="disagree") as caught:
        attempt()
    text = str(caught.value)
    assert "all_reduce (sequence" in text
    assert "400 bytes" in text
    assert ("800 bytes" if same == "collective" else "broadcast") in text
