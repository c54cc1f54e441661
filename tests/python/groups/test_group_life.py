"""How groups begin and end: init, stores, devices, options, timeouts, abort, shutdown."""

from __future__ import annotations

from datetime import timedelta

import harness
import pytest
import torch
import torch.distributed as dist
from deadlines import NEVER, shorten_timeout
from harness import wait_until
from values import check_sum, meet

CPU = torch.device("cpu")


# --- life --------------------------------------------------------------------------------------


def _world(backend: str, world_size: int, path: str, **options) -> None:
    dist.init_process_group(
        backend,
        store=dist.FileStore(path, world_size),
        rank=harness.current_rank(),
        world_size=world_size,
        timeout=timedelta(seconds=20),
        **options,
    )


@pytest.mark.ranks(1, 3, init="none", fresh=True)
def test_init_and_destroy_again_and_again(backend: str, shared: str, world_size: int) -> None:
    everybody = list(range(world_size))
    for cycle in range(5):
        _world(backend, world_size, f"{shared}/cycle{cycle}")
        check_sum(None, everybody, salt=cycle)
        group = dist.new_group()
        check_sum(group, everybody, salt=cycle)
        if cycle % 2:
            dist.destroy_process_group(group)
        dist.destroy_process_group()
        assert not dist.is_initialized()


@pytest.mark.ranks(3, init="tcp")
def test_tcp_store(world_size: int) -> None:
    check_sum(None, list(range(world_size)))
    group = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        check_sum(group, [0, 2])


@pytest.mark.ranks(2, backend="cpu:{backend}")
def test_named_for_a_device(backend: str, world_size: int) -> None:
    assert dist.group.WORLD._get_backend(CPU)._get_backend_name() == backend
    check_sum(None, list(range(world_size)))


@pytest.mark.beyond("gloo", "this is about the plug-in's registration")
@pytest.mark.ranks(2, backend="cpu:{backend},cuda:{backend}")
def test_named_for_two_devices(world_size: int) -> None:
    check_sum(None, list(range(world_size)))


@pytest.mark.beyond("gloo", "this is about the plug-in's registration")
@pytest.mark.ranks(1)
def test_registration(backend: str) -> None:
    assert backend in dist.Backend.backend_list
    assert dist.Backend.backend_capability[backend] == ["cpu", "cuda"]
    assert dist.is_backend_available(backend)
    assert dist.Backend(backend.upper()) == backend


@pytest.mark.beyond("gloo", "q7x2.Options")
@pytest.mark.ranks(2, init="none", fresh=True)
def test_options_object(backend: str, shared: str) -> None:
    import q7x2

    options = q7x2.Options()
    _world(backend, 2, f"{shared}/options", pg_options=options)
    assert dist.group.WORLD._get_backend(CPU).options._timeout == timedelta(seconds=20)
    check_sum(None, [0, 1])
    dist.destroy_process_group()


# --- timeouts, abort, shutdown -----------------------------------------------------------------


# Long enough to make the group on a busy machine.
@pytest.mark.ranks(2, fresh=True, timeout=5)
def test_timeout_of_the_group() -> None:
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"(?i)timed out|timeout"):
            dist.all_reduce(torch.ones(10))
    meet()


@pytest.mark.ranks(2, fresh=True, timeout=NEVER)
def test_timeout_of_a_subgroup() -> None:
    group = dist.new_group(timeout=timedelta(seconds=5))
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"(?i)timed out|timeout"):
            dist.all_reduce(torch.ones(10), group=group)
    meet()


@pytest.mark.beyond("gloo", "takes no timeout after creation")
@pytest.mark.ranks(2, fresh=True, timeout=NEVER)
def test_set_timeout() -> None:
    dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match="Timed out after 500 ms"):
            dist.all_reduce(torch.ones(10))
    meet()


@pytest.mark.beyond("gloo", "does not say who or what")
@pytest.mark.ranks(3, fresh=True)
def test_timeouts_name_the_operation_and_the_missing_rank() -> None:
    shorten_timeout(1)
    if dist.get_rank() == 2:
        meet()
        return
    with pytest.raises(RuntimeError, match="Timed out") as caught:
        dist.all_reduce(torch.ones(10))
    meet()
    text = str(caught.value)
    assert "all_reduce" in text or "allreduce" in text, text
    assert "rank" in text.lower(), text


@pytest.mark.beyond("gloo", "keeps its works after abort")
@pytest.mark.ranks(2, fresh=True, timeout=NEVER)
def test_abort_releases_a_pending_work() -> None:
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(10), async_op=True)
        dist.group.WORLD.abort()
        with pytest.raises(RuntimeError, match=r"(?i)abort|closed|shut"):
            work.wait()
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1))
    meet()


@pytest.mark.beyond("gloo", "has no shutdown")
@pytest.mark.ranks(2, fresh=True)
def test_shutdown_closes_the_group() -> None:
    group = dist.new_group()
    check_sum(group, [0, 1])
    group.shutdown()
    with pytest.raises(RuntimeError, match=r"(?i)closed|shut|destroyed"):
        dist.all_reduce(torch.ones(1), group=group)
    check_sum(None, [0, 1])


@pytest.mark.beyond("gloo", "has no hooks")
@pytest.mark.ranks(2, fresh=True)
def test_completion_hook() -> None:
    seen = []
    group = dist.new_group()
    group._get_backend(CPU)  # the hook belongs to the group's backend
    group._register_on_completion_hook(lambda info: seen.append((info.op_type, info.seq)))
    for _ in range(3):
        dist.all_reduce(torch.ones(10), group=group)
    dist.broadcast(torch.ones(10), 0, group=group)
    group._wait_for_pending_works()
    wait_until(lambda: len(seen) >= 4)
    assert len(seen) == 4, seen
    assert group._has_hooks()
    assert len({seq for _, seq in seen}) == 4


@pytest.mark.beyond("gloo", "does not wait for works")
@pytest.mark.ranks(2)
def test_wait_for_pending_works() -> None:
    tensors = [torch.full((1 << 18,), float(i)) for i in range(8)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    dist.group.WORLD._wait_for_pending_works()
    assert all(work.is_completed() for work in works)
    for i, tensor in enumerate(tensors):
        assert tensor[0] == 2 * i


@pytest.mark.beyond("gloo", "does not connect on demand here")
@pytest.mark.ranks(3, fresh=True)
def test_eager_connect(world_size: int) -> None:
    dist.group.WORLD._get_backend(CPU).eager_connect_single_device(CPU)
    check_sum(None, list(range(world_size)))
