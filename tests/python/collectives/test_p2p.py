"""Point to point: tags, any source, order, batches, many messages, works nobody keeps."""

from __future__ import annotations

import gc
from datetime import timedelta

import harness
import pytest
import torch
import torch.distributed as dist
from deadlines import NEVER
from values import FEW, SIZES, assert_bits, blank, f32, meet, moved_dtypes, payload, strided


@pytest.mark.ranks(*FEW, 4)
def test_send_around_the_ring(world_size: int) -> None:
    me = dist.get_rank()
    right, left = (me + 1) % world_size, (me - 1) % world_size
    for size in [*SIZES, 1 << 20]:
        sent = payload(me, size, f32, salt=size)
        received = blank(size, f32)
        if me % 2 == 0:
            dist.send(sent, right)
            assert dist.recv(received, left) == left
        else:
            assert dist.recv(received, left) == left
            dist.send(sent, right)
        assert_bits(received, payload(left, size, f32, salt=size), size)


@pytest.mark.ranks(2)
def test_dtypes() -> None:
    me = dist.get_rank()
    for dtype in moved_dtypes():
        if me == 0:
            dist.send(payload(0, (4, 3), dtype), 1)
        else:
            received = blank((4, 3), dtype)
            dist.recv(received, 0)
            assert_bits(received, payload(0, (4, 3), dtype), dtype)


@pytest.mark.ranks(2)
def test_zero_dimensional() -> None:
    tensor = torch.tensor(7.0 if dist.get_rank() == 0 else 0.0)
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    assert_bits(tensor, torch.tensor(7.0))


@pytest.mark.beyond("gloo", "needs contiguous tensors")
@pytest.mark.ranks(2)
def test_not_contiguous() -> None:
    if dist.get_rank() == 0:
        dist.send(strided(payload(0, (30, 4), f32)), 1)
    else:
        received = strided(torch.zeros(30, 4))
        dist.recv(received, 0)
        assert_bits(received, payload(0, (30, 4), f32))


@pytest.mark.ranks(2)
def test_both_send_first() -> None:
    """isend on both sides before either receives: no rendezvous may need the other's thread."""
    me = dist.get_rank()
    other = 1 - me
    for size in (1, 70_000, 1 << 21):
        work = dist.isend(payload(me, size, f32), other)
        received = blank(size, f32)
        dist.recv(received, other)
        work.wait()
        assert_bits(received, payload(other, size, f32), size)


@pytest.mark.parametrize("posted", ["receives first", "sends first"])
@pytest.mark.ranks(2)
def test_tags_out_of_order(posted: str) -> None:
    """A receive takes the message with its tag, whichever came first, and ignores no tag."""
    tags = [5, 0, 3, 1 << 20, 2, 9]
    size = 5000
    if dist.get_rank() == 0:
        if posted == "receives first":
            meet()
        works = [dist.isend(payload(tag, size, f32), 1, tag=tag) for tag in tags]
        if posted == "sends first":
            meet()
        for work in works:
            work.wait()
    else:
        if posted == "sends first":
            meet()
        received = {tag: blank(size, f32) for tag in sorted(tags, reverse=True)}
        works = [dist.irecv(received[tag], 0, tag=tag) for tag in received]
        if posted == "receives first":
            meet()
        for work in works:
            work.wait()
        for tag, tensor in received.items():
            assert_bits(tensor, payload(tag, size, f32), tag)


@pytest.mark.ranks(2)
def test_blocking_receives_in_the_other_order() -> None:
    if dist.get_rank() == 0:
        works = [dist.isend(torch.full((10,), float(tag)), 1, tag=tag) for tag in range(6)]
        for work in works:
            work.wait()
    else:
        for tag in reversed(range(6)):
            received = torch.zeros(10)
            dist.recv(received, 0, tag=tag)
            assert_bits(received, torch.full((10,), float(tag)), tag)


@pytest.mark.ranks(2)
def test_messages_of_one_tag_stay_in_order() -> None:
    sizes = [1, 200_000, 3, 50_000, 0, 7]
    if dist.get_rank() == 0:
        works = [dist.isend(payload(i, n, f32), 1, tag=4) for i, n in enumerate(sizes)]
        for work in works:
            work.wait()
    else:
        for i, n in enumerate(sizes):
            received = blank(n, f32)
            dist.recv(received, 0, tag=4)
            assert_bits(received, payload(i, n, f32), i)


@pytest.mark.ranks(*FEW, 4)
def test_receive_from_any_source(world_size: int) -> None:
    me = dist.get_rank()
    if me == 0:
        seen = []
        for _ in range(world_size - 1):
            received = torch.zeros(100)
            source = dist.recv(received)
            assert_bits(received, torch.full((100,), float(source)))
            seen.append(source)
        assert sorted(seen) == list(range(1, world_size))
    else:
        dist.send(torch.full((100,), float(me)), 0)
    dist.barrier()


@pytest.mark.ranks(3)
def test_receive_from_any_source_keeps_tags_apart() -> None:
    me = dist.get_rank()
    if me == 0:
        for tag in (2, 1):
            for _ in range(2):
                received = torch.zeros(3)
                source = dist.recv(received, tag=tag)
                assert_bits(received, torch.full((3,), 10.0 * source + tag))
    else:
        works = [dist.isend(torch.full((3,), 10.0 * me + tag), 0, tag=tag) for tag in (1, 2)]
        for work in works:
            work.wait()
    dist.barrier()


@pytest.mark.ranks(3)
def test_any_source_and_a_named_source_together() -> None:
    me = dist.get_rank()
    if me == 0:
        named = torch.zeros(4)
        dist.recv(named, 2, tag=1)
        assert_bits(named, torch.full((4,), 2.0))
        anyone = torch.zeros(4)
        assert dist.recv(anyone, tag=1) == 1
        assert_bits(anyone, torch.full((4,), 1.0))
    else:
        dist.send(torch.full((4,), float(me)), 0, tag=1)
    dist.barrier()


@pytest.mark.ranks(2)
def test_source_rank_of_the_work() -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), 1)
    else:
        work = dist.group.WORLD.recv_anysource([torch.zeros(1)], 0)
        work.wait()
        assert work._source_rank() == 0


@pytest.mark.ranks(*FEW, 4)
def test_batch_isend_irecv(world_size: int) -> None:
    me = dist.get_rank()
    received = {}
    operations = []
    for other in range(world_size):
        if other == me:
            continue
        received[other] = blank(1000, f32)
        operations.append(dist.P2POp(dist.isend, payload(me, 1000, f32, salt=other), other))
        operations.append(dist.P2POp(dist.irecv, received[other], other))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for other, tensor in received.items():
        assert_bits(tensor, payload(other, 1000, f32, salt=me), other)


@pytest.mark.ranks(2)
def test_batch_isend_irecv_with_tags() -> None:
    me = dist.get_rank()
    other = 1 - me
    received = {tag: blank(20, f32) for tag in (3, 1, 2)}
    operations = [
        dist.P2POp(dist.isend, payload(me, 20, f32, salt=tag), other, tag=tag) for tag in (1, 2, 3)
    ]
    operations += [dist.P2POp(dist.irecv, t, other, tag=tag) for tag, t in received.items()]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for tag, tensor in received.items():
        assert_bits(tensor, payload(other, 20, f32, salt=tag), tag)


@pytest.mark.ranks(3)
def test_batch_on_some_ranks_only() -> None:
    """The batch is no collective: rank 2 takes no part."""
    me = dist.get_rank()
    if me == 0:
        operations = [dist.P2POp(dist.isend, torch.full((5,), 3.0), 1)]
    elif me == 1:
        received = torch.zeros(5)
        operations = [dist.P2POp(dist.irecv, received, 0)]
    else:
        operations = []
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()
    if me == 1:
        assert_bits(received, torch.full((5,), 3.0))
    dist.barrier()


@pytest.mark.ranks(2)
def test_many_messages_in_flight() -> None:
    me = dist.get_rank()
    other = 1 - me
    count = 1000
    sends = [dist.isend(torch.full((16,), float(i)), other, tag=i % 7) for i in range(count)]
    received = [torch.zeros(16) for _ in range(count)]
    receives = [dist.irecv(received[i], other, tag=i % 7) for i in range(count)]
    for work in receives + sends:
        work.wait()
    for i, tensor in enumerate(received):
        assert tensor[0] == i
        assert tensor[15] == i


@pytest.mark.beyond("gloo", "cancels a message whose work is destroyed")
@pytest.mark.ranks(2)
def test_sends_whose_works_are_dropped_still_arrive() -> None:
    """isend's work and its tensor are destroyed at once; the message must not suffer."""
    me = dist.get_rank()
    other = 1 - me
    sizes = (3, 5000, 1 << 20)
    for i, size in enumerate(sizes):
        dist.isend(payload(me, size, f32, salt=i), other, tag=i)
    gc.collect()
    trash = [torch.full((1 << 20,), -1.0) for _ in range(3)]
    del trash
    meet()
    for i, size in enumerate(sizes):
        received = blank(size, f32)
        dist.recv(received, other, tag=i)
        assert_bits(received, payload(other, size, f32, salt=i), size)
    dist.barrier()


@pytest.mark.beyond("gloo", "cancels a message whose work is destroyed")
@pytest.mark.ranks(2)
def test_receives_whose_works_are_dropped_still_complete() -> None:
    me = dist.get_rank()
    received = torch.zeros(100)
    if me == 1:
        dist.irecv(received, 0, tag=2)
        gc.collect()
        dist.barrier()
        harness.wait_until(lambda: bool(received[99] == 4))
        assert_bits(received, torch.full((100,), 4.0))
    else:
        dist.barrier()
        dist.send(torch.full((100,), 4.0), 1, tag=2)
    dist.barrier()


@pytest.mark.ranks(2)
def test_collectives_and_messages_do_not_mix() -> None:
    me = dist.get_rank()
    received = torch.zeros(50)
    if me == 1:
        work = dist.irecv(received, 0, tag=0)
    for turn in range(10):
        tensor = torch.full((50,), float(turn))
        dist.all_reduce(tensor)
        assert_bits(tensor, torch.full((50,), 2.0 * turn))
    if me == 0:
        dist.send(torch.full((50,), -3.0), 1, tag=0)
    else:
        work.wait()
        assert_bits(received, torch.full((50,), -3.0))


@pytest.mark.ranks(2, fresh=True, timeout=NEVER)
def test_receive_that_nobody_answers_times_out() -> None:
    if dist.get_rank() == 0:
        received = torch.zeros(4)
        work = dist.irecv(received, 1, tag=77)
        with pytest.raises(RuntimeError, match=r"(?i)time"):
            work.wait(timedelta(seconds=0.5))
    meet()


@pytest.mark.beyond("gloo", "crashes")
@pytest.mark.ranks(2)
def test_wrong_ranks() -> None:
    me = dist.get_rank()
    with pytest.raises((ValueError, RuntimeError)):
        dist.send(torch.ones(1), 5)
    with pytest.raises((ValueError, RuntimeError)):
        dist.recv(torch.ones(1), 5)
    with pytest.raises(ValueError, match="the same as the rank"):
        dist.send(torch.ones(1), me)
    with pytest.raises((ValueError, RuntimeError), match=r"(?i)tag"):
        dist.group.WORLD.send([torch.ones(1)], 1 - me, -1)
    dist.barrier()


@pytest.mark.beyond("gloo", "takes what fits and drops the rest")
@pytest.mark.ranks(2, fresh=True)
def test_message_longer_than_the_buffer_is_an_error() -> None:
    if dist.get_rank() == 0:
        dist.isend(torch.ones(100), 1).wait()
    else:
        received = torch.zeros(10)
        with pytest.raises(RuntimeError):
            dist.recv(received, 0)
    meet()


@pytest.mark.ranks(2)
def test_several_tensors_in_one_call() -> None:
    """As Gloo: exactly one tensor a message."""
    with pytest.raises((ValueError, RuntimeError)):
        dist.group.WORLD.send([torch.ones(1), torch.ones(1)], 1 - dist.get_rank(), 0)
    dist.barrier()
