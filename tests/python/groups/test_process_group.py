"""``q7x2.ProcessGroup``: groups that ``init_process_group`` does not know."""

from __future__ import annotations

import contextlib
import pathlib
from datetime import timedelta
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from harness import current_rank
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from values import assert_bits, integers


def store(shared: str, prefix: str) -> dist.Store:
    return dist.PrefixStore(prefix, dist.FileStore(f"{shared}/store", -1))


def check_sum(group: dist.ProcessGroup, world_size: int, salt: int = 0) -> None:
    """Through the group's own method, and through torch's function."""
    mine = integers(group.rank(), 1000, torch.float32, salt=salt)
    total = sum(integers(r, 1000, torch.float32, salt=salt) for r in range(world_size))
    for reduce in (
        lambda tensor: group.allreduce([tensor]).wait(),
        lambda tensor: dist.all_reduce(tensor, group=group),
    ):
        tensor = mine.clone()
        reduce(tensor)
        assert_bits(tensor, total)


@pytest.mark.ranks(1, 2, 3, init="none", fresh=True)
def test_a_group_without_a_default_group(world_size: int, shared: str) -> None:
    me = current_rank()
    group = q7x2.ProcessGroup(store(shared, "only"), me, world_size, timedelta(seconds=30))
    assert not dist.is_initialized()
    assert isinstance(group, dist.ProcessGroup)
    assert (group.rank(), group.size()) == (me, world_size)
    backends = [group._get_backend(torch.device(kind)) for kind in ("cpu", "cuda")]
    assert backends[0] is backends[1]
    assert backends[0].name() == "q7x2"
    assert backends[0].options._timeout == timedelta(seconds=30)
    check_sum(group, world_size)
    tensor = torch.full((3,), float(me))
    dist.broadcast(tensor, group=group, group_src=world_size - 1)
    assert_bits(tensor, torch.full((3,), world_size - 1.0))
    objects: list[Any] = [None] * world_size
    dist.all_gather_object(objects, {"rank": me}, group=group)
    assert objects == [{"rank": r} for r in range(world_size)]
    q7x2.monitored_barrier(group)
    group.shutdown()


@pytest.mark.ranks(3, init="none", fresh=True)
def test_groups_at_the_same_time_and_one_after_another(world_size: int, shared: str) -> None:
    me = current_rank()
    whole = q7x2.ProcessGroup(store(shared, "whole"), me, 3, 30, name="whole")
    # The same ranks the other way round, and a part of them.
    turned = q7x2.ProcessGroup(store(shared, "turned"), 2 - me, 3, 30)
    pair = q7x2.ProcessGroup(store(shared, "pair"), me - 1, 2, 30) if me > 0 else None
    works = []
    tensors = [torch.full((1000,), me + 1.0) for _ in range(6)]
    for i, tensor in enumerate(tensors):  # all of them in progress together
        works.append((whole, turned)[i % 2].allreduce([tensor]))
    for work in works:
        work.wait()
    for tensor in tensors:
        assert_bits(tensor, torch.full((1000,), 6.0))
    if pair is not None:
        check_sum(pair, 2)
    turned.shutdown()
    with pytest.raises(dist.DistBackendError, match="shut down"):
        dist.all_reduce(torch.ones(1), group=turned)
    check_sum(whole, 3)
    for epoch in range(5):
        group = q7x2.ProcessGroup(store(shared, f"epoch {epoch}"), me, 3, 30)
        check_sum(group, 3, salt=epoch)
        group.shutdown()
    whole.abort()
    with pytest.raises(dist.DistBackendError, match=r"in group 'whole'.* aborted the group"):
        dist.all_reduce(torch.ones(1), group=whole)
    check_sum(q7x2.ProcessGroup(store(shared, "after"), me, 3, 30), 3)


def open_files() -> dict[str, str]:
    """What this process has open, by descriptor."""
    found = {}
    for each in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found[each.name] = str(each.readlink())
    return found


@pytest.mark.ranks(2, init="none", fresh=True)
def test_a_peer_that_comes_again_leaves_nothing_behind(shared: str) -> None:
    """Rank 1 leaves its only group, and all it had with it. Rank 0 goes on and meets it again."""
    me = current_rank()
    kept = q7x2.ProcessGroup(dist.HashStore(), 0, 1, 30) if me == 0 else None

    def meet_again(epoch: int) -> dict[str, str]:
        group = q7x2.ProcessGroup(store(shared, f"epoch {epoch}"), me, 2, 30)
        for sender in range(2):
            message = [torch.ones(10)]
            (group.send if me == sender else group.recv)(message, 1 - me, 0).wait()
        group.shutdown()
        return open_files()

    files = [meet_again(epoch) for epoch in range(6)]
    # One file that a library opens once is no leak. A leak is one for each meeting.
    assert len(files[-1]) <= len(files[1]) + 1, files[-1].items() - files[1].items()
    if kept is not None:
        kept.shutdown()


@pytest.mark.ranks(2, fresh=True)
def test_beside_the_default_group(shared: str) -> None:
    me = dist.get_rank()
    group = q7x2.ProcessGroup(store(shared, "beside"), me, 2, 30)
    check_sum(group, 2)
    check_sum(dist.group.WORLD, 2, salt=1)
    group.shutdown()
    check_sum(dist.group.WORLD, 2, salt=2)


@pytest.mark.ranks(2, init="none", fresh=True)
def test_ddp_over_it(shared: str) -> None:
    me = current_rank()
    group = q7x2.ProcessGroup(store(shared, "ddp"), me, 2, 30)
    torch.manual_seed(me)  # DDP takes rank 0's parameters
    model = DistributedDataParallel(nn.Linear(8, 8), process_group=group)
    model(torch.randn(4, 8)).square().sum().backward()
    mine = torch.cat([p.flatten() for p in model.parameters()])
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    for tensor in (mine, grads):
        theirs = [torch.empty_like(tensor) for _ in range(2)]
        dist.all_gather(theirs, tensor, group=group)
        assert_bits(theirs[0], theirs[1])
    with pytest.raises(ValueError, match=r"needs a group that torch\.distributed knows"):
        q7x2.attach(model, q7x2.Quantize("int8"))


@pytest.mark.ranks(2, init="none", fresh=True)
def test_a_rank_that_does_not_come_is_named(shared: str) -> None:
    if current_rank() == 0:
        with pytest.raises(dist.DistBackendError, match=r"the group 'lonely'.*rank 1"):
            q7x2.ProcessGroup(store(shared, "lonely"), 0, 2, 3, name="lonely")


@pytest.mark.ranks(2, init="none", fresh=True)
def test_options_are_copied(shared: str) -> None:
    options = q7x2.Options(algorithms="ring")
    group = q7x2.ProcessGroup(store(shared, "ring"), current_rank(), 2, 30, options=options)
    backend = group._get_backend(torch.device("cpu"))
    assert backend.options.algorithms == "ring"
    assert backend.options is not options
    check_sum(group, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 0, 30), ValueError, "size must be at least 1, got 0"),
        ((2, 2, 30), ValueError, "rank must be from 0 to 1, got 2"),
        ((-1, 2, 30), ValueError, "rank must be from 0 to 1, got -1"),
        ((0, 1, 0), ValueError, "timeout must be positive, got 0 s"),
        ((0, 1, "1 min"), ValueError, "timeout must be a timedelta or seconds, got '1 min'"),
        ((0, 1, timedelta(seconds=-1)), ValueError, "timeout must be positive, got -1 s"),
    ],
)
def test_bad_arguments_say_what_was_expected(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        q7x2.ProcessGroup(dist.HashStore(), *arguments)


def test_a_group_of_another_backend_is_named() -> None:
    group = dist.ProcessGroup(dist.HashStore(), 0, 1)
    kind = dist.ProcessGroup.BackendType.GLOO
    backend = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=30))
    group._register_backend(torch.device("cpu"), kind, backend)
    with pytest.raises(ValueError, match="q7x2 backend, but this one has 'cpu:gloo'"):
        q7x2.all_reduce(torch.ones(1), codec="int8", group=group)


def test_options_of_another_backend_are_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a q7x2\.Options, got str"):
        q7x2.ProcessGroup(dist.HashStore(), 0, 1, options="ring")  # type: ignore[arg-type]


def test_torchft_where_it_is_not_installed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torchft", None)
    monkeypatch.delitem(sys.modules, "q7x2.torchft", raising=False)
    with pytest.raises(ImportError, match=r"q7x2\.torchft needs torchft \(pip install torchft\)"):
        import q7x2.torchft  # noqa: F401
