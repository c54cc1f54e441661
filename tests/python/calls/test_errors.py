"""Wrong calls: a typed error that says what was expected, on every rank, and never a hang."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import pytest
import q7x2
import torch
import torch.distributed as dist
from deadlines import NEVER, shorten_timeout
from values import meet
from wrong_calls import CPU, ERRORS, breakable_group, works_still

from tests.lab.processes import free_port

# --- one rank's mistake, found before anything is sent -------------------------------------------


@pytest.mark.ranks(2)
def test_invalid_root_rank() -> None:
    """c10d's words, as users match them."""
    world = dist.group.WORLD
    me = dist.get_rank()
    for root in (-1, 2, 100):
        options = dist.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        with pytest.raises(ERRORS, match="invalid root rank"):
            world.broadcast([torch.ones(1)], options)
        options = dist.ReduceOptions()
        options.rootRank = root
        with pytest.raises(ERRORS, match="invalid root rank"):
            world.reduce([torch.ones(1)], options)
        options = dist.GatherOptions()
        options.rootRank = root
        with pytest.raises(ERRORS, match="invalid root rank"):
            world.gather([[torch.ones(1), torch.ones(1)]], [torch.ones(1)], options)
        options = dist.ScatterOptions()
        options.rootRank = root
        with pytest.raises(ERRORS, match="invalid root rank"):
            world.scatter([torch.ones(1)], [[torch.ones(1), torch.ones(1)]], options)
    assert me == dist.get_rank()
    works_still()


@pytest.mark.ranks(2)
def test_invalid_root_tensor() -> None:
    options = dist.BroadcastOptions()
    options.rootRank = 0
    for tensor in (-1, 1):
        options.rootTensor = tensor
        with pytest.raises(ERRORS, match="invalid root tensor"):
            dist.group.WORLD.broadcast([torch.ones(1)], options)
    works_still()


@pytest.mark.ranks(2)
def test_no_tensors() -> None:
    with pytest.raises(ERRORS, match="requires non-empty tensor list"):
        dist.group.WORLD._get_backend(CPU).allreduce([])
    works_still()


@pytest.mark.ranks(2)
def test_invalid_tensor_type_and_size_in_a_list() -> None:
    """Several tensors in one call must agree."""
    world = dist.group.WORLD
    one = torch.ones(2)
    with pytest.raises(ERRORS, match="invalid tensor type"):
        world.allreduce([one, torch.ones(2, dtype=torch.float64)])
    with pytest.raises(ERRORS, match="invalid tensor size"):
        world.allreduce([one, torch.ones(3)])
    works_still()


@pytest.mark.beyond("gloo", "crashes")
@pytest.mark.ranks(2)
def test_a_tensor_whose_memory_was_freed() -> None:
    """FSDP frees the storage of parameters that keep their shape."""
    world = dist.get_world_size()
    peer = 1 - dist.get_rank()

    def freed(tensor: torch.Tensor) -> torch.Tensor:
        tensor.untyped_storage().resize_(4)
        return tensor

    def ones(rows: int = 6) -> torch.Tensor:
        return torch.ones(rows, 5)

    calls: dict[str, Callable[[torch.Tensor], object]] = {
        "all_reduce": dist.all_reduce,
        "reduce": lambda t: dist.reduce(t, 0),
        "broadcast": lambda t: dist.broadcast(t, 0),
        "send": lambda t: dist.send(t, peer),
        "recv": lambda t: dist.recv(t, peer),
        "all_gather in": lambda t: dist.all_gather([ones() for _ in range(world)], t),
        "all_gather out": lambda t: dist.all_gather([t for _ in range(world)], ones()),
        "all_gather_single": lambda t: dist.all_gather_into_tensor(t, ones(3)),
        "reduce_scatter in": lambda t: dist.reduce_scatter(ones(), [t for _ in range(world)]),
        "reduce_scatter out": lambda t: dist.reduce_scatter(t, [ones() for _ in range(world)]),
        "all_to_all": lambda t: dist.all_to_all_single(t, ones()),
        "codec": lambda t: q7x2.all_reduce(t, codec="int8"),
        "codec that adds": lambda t: q7x2.all_reduce(t, codec="sumint8"),
        "blocks": lambda t: q7x2.all_reduce(t, codec="blocks"),
        "residual": lambda t: q7x2.all_reduce(ones(), codec="int8", residual=t),
        "several": lambda t: dist.group.WORLD.allreduce([t, ones()]),
    }
    for name, call in calls.items():
        print(name)
        for tensor in (freed(torch.ones(6, 5)), freed(torch.ones(5, 6).T)):
            with pytest.raises(ERRORS, match="was it freed"):
                call(tensor)
    works_still()


@pytest.mark.beyond("gloo", "crashes")
@pytest.mark.ranks(3)
def test_splits_whose_sum_overflows() -> None:
    """The sum of 64-bit numbers is that of the rows."""
    huge = 2**63 - 1
    for splits in ([huge, huge, 8], [8, huge, huge], [-1, 5, 2]):
        with pytest.raises(ERRORS, match=r"(?i)split sizes"):
            dist.all_to_all_single(torch.ones(6), torch.ones(6), splits, [2, 2, 2])
        with pytest.raises(ERRORS, match=r"(?i)split sizes"):
            dist.all_to_all_single(torch.ones(6), torch.ones(6), [2, 2, 2], splits)
    works_still()


@pytest.mark.ranks(2)
def test_gather_and_scatter_lists() -> None:
    me = dist.get_rank()
    one = torch.ones(3)
    if me == 0:
        with pytest.raises(ERRORS):
            dist.gather(one, [torch.ones(3)], dst=0)
        with pytest.raises(ERRORS):
            dist.gather(one, None, dst=0)
        with pytest.raises(ERRORS):
            dist.scatter(one, [torch.ones(3)] * 3, src=0)
        with pytest.raises(ERRORS):
            dist.scatter(one, None, src=0)
        with pytest.raises(ERRORS, match="invalid tensor size"):
            dist.gather(one, [torch.ones(4), torch.ones(3)], dst=0)
        with pytest.raises(ERRORS, match=r"invalid tensor (type|size)"):
            dist.scatter(one, [torch.ones(5), torch.ones(3)], src=0)
    else:
        with pytest.raises(ERRORS, match=r"(?i)must not be specified on non-(destination|source)"):
            dist.gather(one, [torch.ones(3), torch.ones(3)], dst=0)
        with pytest.raises(ERRORS, match=r"(?i)must not be specified on non-(destination|source)"):
            dist.scatter(one, [torch.ones(3), torch.ones(3)], src=0)
    works_still()


@pytest.mark.ranks(2)
def test_all_gather_lists() -> None:
    with pytest.raises(ERRORS):
        dist.all_gather([torch.ones(3)], torch.ones(3))
    with pytest.raises(ERRORS):
        dist.all_gather([torch.ones(3)] * 3, torch.ones(3))
    with pytest.raises(ERRORS, match=r"(?i)dtype|type"):
        dist.all_gather([torch.ones(3, dtype=torch.int32) for _ in range(2)], torch.ones(3))
    works_still()


@pytest.mark.ranks(2)
def test_sizes_of_joined_tensors() -> None:
    with pytest.raises(ERRORS):
        dist.all_gather_into_tensor(torch.ones(5), torch.ones(3))
    with pytest.raises(ERRORS):
        dist.all_gather_into_tensor(torch.ones(6, dtype=torch.int32), torch.ones(3))
    with pytest.raises(ERRORS):
        dist.reduce_scatter_tensor(torch.ones(3), torch.ones(5))
    with pytest.raises(ERRORS):
        dist.reduce_scatter(torch.ones(3), [torch.ones(3)])
    with pytest.raises(ERRORS):
        dist.all_to_all_single(torch.ones(4), torch.ones(3))
    with pytest.raises(ERRORS):
        dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 2], [2, 2])
    with pytest.raises(ERRORS):
        dist.all_to_all_single(torch.ones(4), torch.ones(4), [2, 2], [4])
    with pytest.raises(ERRORS):
        dist.all_to_all_single(torch.ones(4), torch.ones(4), [5, -1], [2, 2])
    works_still()


@pytest.mark.beyond("gloo", "segfaults or accepts it")
@pytest.mark.ranks(2)
def test_sparse_tensors_where_dense_ones_belong() -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(ERRORS, match=r"(?i)sparse|dense|layout"):
        dist.broadcast(sparse, 0)
    with pytest.raises(ERRORS, match=r"(?i)sparse|SUM"):
        dist.all_reduce(sparse, dist.ReduceOp.MAX)
    with pytest.raises(ERRORS, match=r"(?i)csr|layout|sparse"):
        dist.all_reduce(torch.eye(3).to_sparse_csr())
    works_still()


# --- ranks that disagree -------------------------------------------------------------------------
#
# Every rank must raise, none may hang or return a wrong result, and the message says what differed.
# Who only sends (the root of a broadcast) may have returned before the others look at the call: it
# learns of the error by the next collective.


# Ranks that disagree find out where a message of one call meets a receive of the other. Whether any
# does depends on the two algorithms (where both are trees with one root, all wait for each other),
# and so on the Fabric: these tests take the defaults, with which tiny calls are direct.
FIXED_CHOICE = {"Q7X2_PROBE": "0"}


SIZE_WORDS = ("size", "shape", "bytes", "element", "count", "split", "disagree")


def disagree(
    call: Callable[[dist.ProcessGroup], object], *words: str, one_sided: bool = False
) -> None:
    def attempt(group: dist.ProcessGroup) -> None:
        call(group)
        if one_sided:
            dist.barrier(group)

    with breakable_group() as group, pytest.raises(ERRORS) as caught:
        attempt(group)
    text = str(caught.value).lower()
    assert any(word in text for word in words), text
    assert "timed out" not in text, text


@pytest.mark.beyond("gloo", "hangs or corrupts")
@pytest.mark.ranks(2, 3, env=FIXED_CHOICE)
def test_different_calls() -> None:
    me, sum_, max_ = dist.get_rank(), dist.ReduceOp.SUM, dist.ReduceOp.MAX
    for size, more in ((100, 1), (1 << 20, 8)):
        tensor = torch.ones(size if me == 0 else size + more)
        disagree(lambda group, t=tensor: dist.all_reduce(t, group=group), *SIZE_WORDS)
    tensor = torch.ones(64, dtype=torch.float32 if me == 0 else torch.int32)
    disagree(lambda group: dist.all_reduce(tensor, group=group), "dtype", "type")
    op = sum_ if me == 0 else max_
    disagree(lambda group: dist.all_reduce(torch.ones(64), op, group), "op", "reduc")
    words = ("operation", "collective")
    if me == 0:
        disagree(lambda group: dist.all_reduce(torch.ones(64), group=group), "broadcast", *words)
    else:
        disagree(lambda group: dist.broadcast(torch.ones(64), 0, group), "reduce", *words)


@pytest.mark.beyond("gloo", "hangs or corrupts")
@pytest.mark.ranks(2, env=FIXED_CHOICE)
def test_different_sizes_in_other_collectives() -> None:
    n = 64 + 8 * dist.get_rank()
    one, two = torch.ones(n), torch.ones(2 * n)
    disagree(lambda group: dist.broadcast(one, 0, group), *SIZE_WORDS, one_sided=True)
    disagree(lambda group: dist.reduce(one, 0, group=group), *SIZE_WORDS, one_sided=True)
    disagree(lambda group: dist.all_gather_into_tensor(two, one, group), *SIZE_WORDS)
    disagree(lambda group: dist.all_to_all_single(one, one, group=group), *SIZE_WORDS)


@pytest.mark.beyond("gloo", "hangs or corrupts")
@pytest.mark.ranks(2, 3, timeout=NEVER, env=FIXED_CHOICE)
def test_different_roots() -> None:
    """Rank 0 believes in itself, the others in rank 1.

    Two roots that only send need not find out; but what they sent must not turn up in a later
    operation, and nobody may hang.
    """
    text = "root"
    try:
        dist.broadcast(torch.full((64,), -1.0), 0 if dist.get_rank() == 0 else 1)
        for _ in range(3):
            works_still()
    except ERRORS as error:
        text = str(error)
    assert "root" in text


# --- groups and their making ---------------------------------------------------------------------


@pytest.mark.beyond("gloo", "goes on working")
@pytest.mark.ranks(2, fresh=True)
def test_closed_group() -> None:
    group = dist.new_group()
    dist.barrier(group=group)
    dist.destroy_process_group(group)
    with pytest.raises((*ERRORS, AssertionError)):
        dist.all_reduce(torch.ones(1), group=group)
    works_still()


@pytest.mark.ranks(2, fresh=True)
def test_no_group() -> None:
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.all_reduce(torch.ones(1))


@pytest.mark.ranks(1, init="none", fresh=True)
def test_store_that_nobody_serves(backend: str) -> None:
    with pytest.raises((RuntimeError, dist.DistStoreError, dist.DistNetworkError)) as caught:
        dist.init_process_group(
            backend,
            init_method=f"tcp://127.0.0.1:{free_port()}",
            rank=1,
            world_size=2,
            timeout=timedelta(seconds=1),
        )
    assert not dist.is_initialized()
    assert str(caught.value)


@pytest.mark.ranks(1, init="none", fresh=True)
def test_peer_that_never_comes(backend: str, shared: str) -> None:
    """A group of two that one rank makes alone fails within its timeout, and says so."""
    store = dist.FileStore(f"{shared}/alone", 2)

    def start_alone() -> None:
        dist.init_process_group(
            backend, store=store, rank=0, world_size=2, timeout=timedelta(seconds=1)
        )
        dist.all_reduce(torch.ones(1))

    with pytest.raises((RuntimeError, ValueError)) as caught:
        start_alone()
    assert any(word in str(caught.value).lower() for word in ("time", "wait"))


@pytest.mark.ranks(1, init="none", fresh=True)
def test_missing_environment(backend: str) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    with pytest.raises(ValueError, match="environment variable RANK expected"):
        dist.init_process_group(backend)
    os.environ.update(RANK="0", WORLD_SIZE="two", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    with pytest.raises(ValueError, match="two"):
        dist.init_process_group(backend)
    assert not dist.is_initialized()


@pytest.mark.beyond("gloo", "this is about q7x2's settings")
@pytest.mark.ranks(1, init="none", fresh=True)
def test_malformed_settings_name_the_variable(backend: str, shared: str) -> None:
    """UCX chosen by a path that is no UCX."""
    os.environ["Q7X2_UCX"] = "/nonexistent/ucx"
    with pytest.raises(Exception, match=r"Q7X2_UCX") as caught:
        dist.init_process_group(
            backend, store=dist.FileStore(f"{shared}/s", 1), rank=0, world_size=1
        )
    assert "/nonexistent/ucx" in str(caught.value)
    assert not dist.is_initialized()


@pytest.mark.beyond("gloo", "takes no options object of this kind")
@pytest.mark.ranks(1, init="none", fresh=True)
def test_options_of_another_backend(backend: str, shared: str) -> None:
    options = dist.ProcessGroupGloo._Options()
    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"(?i)options"):
        dist.init_process_group(
            backend,
            store=dist.FileStore(f"{shared}/s", 1),
            rank=0,
            world_size=1,
            pg_options=options,
        )


@pytest.mark.ranks(2)
def test_errors_are_of_the_types_users_catch() -> None:
    assert issubclass(dist.DistBackendError, RuntimeError)
    with pytest.raises(ERRORS):
        dist.broadcast(torch.ones(1), 7)
    works_still()


@pytest.mark.beyond("gloo", "raises a plain RuntimeError")
@pytest.mark.ranks(2, fresh=True)
def test_timeout_is_a_dist_backend_error() -> None:
    shorten_timeout(0.5)
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match="Timed out") as caught:
            dist.broadcast(torch.ones(4), 1)
        text = str(caught.value).lower()
        assert "broadcast" in text
        assert "rank 1" in text or "ranks 1" in text or "rank(s) 1" in text, text
    meet()
