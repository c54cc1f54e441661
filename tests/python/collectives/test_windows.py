"""``q7x2.Window``: puts, gets and signals, in shared memory, by the kernel, and by messages."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from datetime import timedelta
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from harness import current_rank
from seeds import seed
from values import assert_bits

pytestmark = pytest.mark.beyond("gloo", "windows are q7x2's")

# Ranks of one host copy; others send messages, over UCX or over many connections.
HOSTS = {"Q7X2_HOST_ID": "{rank}"}
PLACES = {"one host": {}, "hosts": HOSTS, "far hosts": {**HOSTS, "Q7X2_STREAMS": "1"}}
everywhere = pytest.mark.ranks(3, places=PLACES, stays=True)
leaving = pytest.mark.ranks(2, places=PLACES, fresh=True)

SHORT = timedelta(milliseconds=300)


def is_one_host() -> bool:
    return "Q7X2_HOST_ID" not in os.environ


def window_of(length: int, *, shared: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    if shared:
        return q7x2.Window.shared(length, dtype=dtype)
    return q7x2.Window(torch.zeros(length, dtype=dtype))


def neighbours() -> tuple[int, int]:
    """The next rank and the one before."""
    me, size = dist.get_rank(), dist.get_world_size()
    return (me + 1) % size, (me - 1) % size


@everywhere
@pytest.mark.parametrize("shared", [False, True], ids=["own tensor", "shared tensor"])
def test_what_was_put_is_there_after_the_signal(shared: bool) -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    chance = random.Random(seed())
    with window_of(5000, shared=shared) as window:
        assert window.is_direct(me)
        assert window.is_direct(neighbours()[0]) == is_one_host()
        for turn in range(20):
            length = chance.choice([1, 2, 7, 1000, 1600])
            for rank in range(size):
                values = torch.arange(length) + float(100 * turn + me)
                window.put(values, rank, offset=1600 * me)
                window.signal(rank)
            for rank in range(size):
                window.wait_signal(rank)
                expected = torch.arange(length) + float(100 * turn + rank)
                assert_bits(window.tensor[1600 * rank : 1600 * rank + length], expected)
            dist.barrier()


@everywhere
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64, torch.complex64])
def test_gets_read_what_is_there(dtype: torch.dtype) -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    tensor = (torch.arange(64) % 50 + me).to(dtype)
    with q7x2.Window(tensor) as window:
        dist.barrier()
        for rank in range(size):
            got = torch.zeros(10, dtype=dtype)
            window.get(got, rank, offset=54)
            assert_bits(got, (torch.arange(54, 64) % 50 + rank).to(dtype))
        work = window.get(got, neighbours()[0], async_op=True)
        assert work is not None
        work.wait()
        assert_bits(got, (torch.arange(10) % 50 + neighbours()[0]).to(dtype))
        dist.barrier()


@everywhere
def test_large_ones_beside_collectives() -> None:
    following, previous = neighbours()
    length = 3 << 18
    with window_of(length) as window:
        for turn in range(3):
            values = torch.full((length,), float(10 * turn + dist.get_rank()))
            work = window.put(values, following, async_op=True)
            window.signal(following)
            total = torch.ones(1000)
            dist.all_reduce(total)
            window.wait_signal(previous)
            assert work is not None
            work.wait()
            assert_bits(window.tensor, torch.full((length,), float(10 * turn + previous)))
            dist.barrier()


@everywhere
def test_each_signal_ends_one_wait() -> None:
    following, previous = neighbours()
    with window_of(1) as window:
        for _ in range(5):
            window.signal(following)
        waits = [window.wait_signal(previous, async_op=True) for _ in range(6)]
        for work in waits[:5]:
            assert work is not None
            work.wait()
            assert work.is_completed()
        last = waits[5]
        assert last is not None
        assert not last.is_completed()
        dist.barrier()
        window.signal(following)
        last.wait()
        with pytest.raises(dist.DistBackendError, match=f"no signal of rank {previous}"):
            window.wait_signal(previous, timeout=SHORT)
        dist.barrier()
        window.signal(following)
        window.wait_signal(previous)
        dist.barrier()


@everywhere
def test_several_windows_and_threads() -> None:
    following, previous = neighbours()
    windows = [window_of(100) for _ in range(3)]

    def use(number: int) -> None:
        window = windows[number]
        for turn in range(30):
            window.put(torch.full((100,), float(turn + number)), following)
            window.signal(following)
            window.wait_signal(previous)
            window.signal(previous)  # it may overwrite
            window.wait_signal(following)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, window in enumerate(windows):
        assert_bits(window.tensor, torch.full((100,), 29.0 + number))
        window.close()


@everywhere
def test_wrong_calls_are_errors_at_once() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    following = neighbours()[0]
    with window_of(10) as window:
        wrong: list[tuple[type[Exception], str, Any]] = [
            (RuntimeError, "in the 40 bytes", lambda: window.put(torch.ones(11), following)),
            (RuntimeError, "in the 40 bytes", lambda: window.put(torch.ones(1), following, 10)),
            (RuntimeError, "in the 40 bytes", lambda: window.get(torch.ones(1), following, -1)),
            (RuntimeError, "a group of 3", lambda: window.put(torch.ones(1), size)),
            (RuntimeError, "a group of 3", lambda: window.signal(-1)),
            (RuntimeError, "a group of 3", lambda: window.wait_signal(2**40)),
            (TypeError, "expected elements of", lambda: window.put(torch.ones(1).int(), me)),
            (TypeError, "contiguous", lambda: window.put(torch.ones(4, 4)[:, 0], following)),
            (TypeError, "incompatible function arguments", lambda: window.get([1.0], following)),
        ]
        for kind, text, call in wrong:
            with pytest.raises(kind, match=text):
                call()
        window.put(torch.ones(0), following, 10)
        dist.barrier()
    with pytest.raises(RuntimeError, match="closed"):
        window.put(torch.ones(1), following)
    with pytest.raises(TypeError, match="contiguous"):
        q7x2.Window(torch.ones(4, 4).t())


@everywhere
def test_different_elements_are_an_error_on_all_ranks() -> None:
    dtype = torch.float64 if dist.get_rank() == 1 else torch.float32
    with pytest.raises(dist.DistBackendError, match="elements differ"):
        window_of(4, dtype=dtype)
    dist.barrier()


@everywhere
def test_lengths_may_differ() -> None:
    me = dist.get_rank()
    with window_of(me) as window:
        for rank in range(dist.get_world_size()):
            window.put(torch.ones(rank), rank)
        with pytest.raises(RuntimeError, match="in the 0 bytes"):
            window.put(torch.ones(1), 0)
        dist.barrier()
    assert_bits(window.tensor, torch.ones(me))


@leaving
def test_who_waits_for_a_rank_that_leaves_is_told() -> None:
    window = window_of(4)
    if dist.get_rank() == 1:
        window.put(torch.ones(4), 0)
        window.signal(0)
        dist.destroy_process_group()
        return
    window.wait_signal(1)
    assert_bits(window.tensor, torch.ones(4))
    with pytest.raises(dist.DistBackendError, match=r"rank 1.* left"):
        window.wait_signal(1)


@pytest.mark.ranks(4, init="none", fresh=True)
def test_ranks_of_two_hosts(shared: str) -> None:
    rank = current_rank()
    os.environ["Q7X2_HOST_ID"] = str(rank // 2)
    dist.init_process_group("q7x2", init_method=f"file://{shared}/store", rank=rank, world_size=4)
    with window_of(4) as window:
        for peer in range(4):
            assert window.is_direct(peer) == (peer // 2 == rank // 2)
            window.put(torch.tensor([float(rank)]), peer, offset=rank)
            window.signal(peer)
        for peer in range(4):
            window.wait_signal(peer)
        assert_bits(window.tensor, torch.arange(4.0))
    dist.destroy_process_group()


@pytest.mark.ranks(2, fresh=True)
def test_a_dropped_window_refuses() -> None:
    window = window_of(4)
    dist.barrier()
    if dist.get_rank() == 1:
        del window
    dist.barrier()
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match="rank 1 has closed its"):
            window.put(torch.ones(1), 1)


@pytest.mark.ranks(2, fresh=True)
def test_a_forked_child_leaves_the_window_open() -> None:
    window = window_of(4)
    child = os.fork()
    if child == 0:
        del window
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    dist.barrier()
    window.put(torch.ones(4), 1 - dist.get_rank())
    window.close()
    assert_bits(window.tensor, torch.ones(4))


@pytest.mark.skipif(
    not hasattr(dist, "_supports_window"), reason="this torch has no windows; 2.14 and newer do"
)
@pytest.mark.ranks(2)
def test_windows_of_c10d() -> None:
    assert dist._supports_window()
    me, other = dist.get_rank(), 1 - dist.get_rank()
    for window in (dist._new_window(torch.zeros(8)), dist._new_window()):
        tensor = torch.zeros(8)
        with contextlib.suppress(RuntimeError):  # the second one has no tensor
            window.tensor_deregister()
        window.tensor_register(tensor)
        work = window.put(torch.full((4,), float(me + 1)), other, 2, True)
        window.signal(other, False)
        window.wait_signal(other, False)
        assert work.wait()
        assert_bits(tensor[2:6], torch.full((4,), float(other + 1)))
        with pytest.raises(RuntimeError, match="in the 32 bytes"):
            window.put(torch.ones(8), other, 1, False)
        window.tensor_deregister()
