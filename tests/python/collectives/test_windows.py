"""``q7x2.Window``: puts, gets and signals, in shared memory, by the kernel, and by messages."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import window_checks
from harness import current_rank
from values import assert_bits
from window_checks import window_of

HOSTS = {"Q7X2_HOST_ID": "{rank}"}
FAR = {**HOSTS, "Q7X2_STREAMS": "1"}


class Everywhere:
    test_what_was_put_is_there_after_the_signal = staticmethod(
        window_checks.check_what_was_put_is_there_after_the_signal
    )
    test_gets_read_what_is_there = staticmethod(window_checks.check_gets_read_what_is_there)
    test_large_ones_beside_collectives = staticmethod(
        window_checks.check_large_ones_beside_collectives
    )
    test_each_signal_ends_one_wait = staticmethod(window_checks.check_each_signal_ends_one_wait)
    test_several_windows_and_threads = staticmethod(window_checks.check_several_windows_and_threads)
    test_wrong_calls_are_errors_at_once = staticmethod(
        window_checks.check_wrong_calls_are_errors_at_once
    )
    test_different_elements_are_an_error_on_all_ranks = staticmethod(
        window_checks.check_different_elements_are_an_error_on_all_ranks
    )
    test_lengths_may_differ = staticmethod(window_checks.check_lengths_may_differ)


@pytest.mark.ranks(3)
class TestOneHost(Everywhere):
    """Ranks copy into each other's memory."""


@pytest.mark.ranks(3, env=HOSTS, stays=True)
class TestHosts(Everywhere):
    """Messages go over UCX."""


@pytest.mark.ranks(3, env=FAR, stays=True)
class TestFarHosts(Everywhere):
    """Messages go over many connections."""


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


class Leaving:
    test_who_waits_for_a_rank_that_leaves_is_told = staticmethod(
        window_checks.check_who_waits_for_a_rank_that_leaves_is_told
    )


@pytest.mark.ranks(2, fresh=True)
class TestLeavingOneHost(Leaving):
    pass


@pytest.mark.ranks(2, env=HOSTS)
class TestLeavingHosts(Leaving):
    pass


@pytest.mark.ranks(2, env=FAR)
class TestLeavingFarHosts(Leaving):
    pass
