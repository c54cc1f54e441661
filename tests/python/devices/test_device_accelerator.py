"""The stand-in accelerator itself: it must show the mistakes that a GPU would show."""

from __future__ import annotations

import signal

import harness
import pytest
import stand_in
import torch

pytestmark = stand_in.needs_accelerator


@pytest.mark.ranks(1, init="none", fresh=True)
def test_computes_as_the_cpu_does() -> None:
    stand_in.load()
    torch.manual_seed(1)
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    x, y = a.to("fake"), b.to("fake")
    assert x.device == torch.device("fake", 0)
    for op in (torch.add, torch.mm, torch.sub, torch.maximum, torch.atan2):
        assert torch.equal(op(x, y).cpu(), op(a, b))
    assert torch.equal((x.t()[2:5] * 3).sum(dim=0).cpu(), (a.t()[2:5] * 3).sum(dim=0))
    assert x.sum().item() == a.sum().item()
    assert torch.equal(x.nonzero().cpu(), a.nonzero())
    assert torch.equal(x[x > 0].cpu(), a[a > 0])
    assert torch.equal(torch.cat([x, y]).to(torch.float64).cpu(), torch.cat([a, b]).double())
    x[3] = 7
    a[3] = 7
    assert torch.equal(x.cpu(), a)
    x.resize_(16, 8)
    assert torch.equal(x[:8].cpu(), a)
    assert torch.equal(torch.arange(5, device="fake:1").cpu(), torch.arange(5))


@pytest.mark.ranks(1, init="none", fresh=True)
def test_trains_as_the_cpu_does() -> None:
    stand_in.load()

    def losses(device: str) -> list[float]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        inputs, targets = torch.randn(32, 8).to(device), torch.randint(4, (32,)).to(device)
        seen = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    torch.testing.assert_close(losses("fake"), losses("cpu"))


@pytest.mark.ranks(1, init="none", fresh=True)
def test_random_numbers_follow_the_seed() -> None:
    stand_in.load()
    torch.manual_seed(5)
    first = torch.randn(100, device="fake")
    second = torch.randn(100, device="fake")
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(torch.randn(100, device="fake"), first)


def _read_from_the_host() -> None:
    import ctypes

    stand_in.load()
    tensor = torch.ones(4, device="fake")
    torch.fake.synchronize()
    ctypes.string_at(tensor.data_ptr(), 16)


def test_a_host_that_touches_device_memory_faults(new_pool) -> None:
    pool = new_pool(1)
    pool.start(_read_from_the_host, harness.GroupSpec(backend="q7x2", key="touch", init="none"))
    (outcome,) = pool.collect()
    assert (outcome.kind, outcome.exitcode) == ("died", -signal.SIGSEGV)


@pytest.mark.ranks(1, init="none", fresh=True)
def test_operators_run_later_in_the_order_of_their_stream() -> None:
    stand_in.load()
    stream = torch.Stream("fake")
    result = torch.empty(4, pin_memory=True)
    with stream, stand_in.paused(stream):
        x = torch.ones(4, device="fake")
        x += 1
        x *= 3
        result.zero_()
        result.copy_(x, non_blocking=True)
        assert not stream.query()
        assert result.tolist() == [0] * 4
    stream.synchronize()
    assert result.tolist() == [6] * 4


@pytest.mark.ranks(1, init="none", fresh=True)
def test_only_events_order_streams() -> None:
    stand_in.load()
    one, two = torch.Stream("fake"), torch.Stream("fake")
    x = torch.zeros(4, device="fake")
    torch.fake.synchronize()
    early, late = torch.empty(4, pin_memory=True), torch.empty(4, pin_memory=True)
    with stand_in.paused(one):
        with one:
            x += 1
            written = one.record_event()
        with two:
            early.copy_(x, non_blocking=True)
            two.synchronize()  # nothing has told it to wait
            two.wait_event(written)
            late.copy_(x, non_blocking=True)
        assert not written.query()
        assert early.tolist() == [0] * 4
    two.synchronize()
    assert written.query()
    assert late.tolist() == [1] * 4


@pytest.mark.ranks(1, init="none", fresh=True)
def test_blocking_copies_block_the_host() -> None:
    stand_in.load()
    x = torch.ones(1 << 16, device="fake")
    stream = torch.fake.current_stream()
    with stand_in.slow(stream, 0.02):
        pageable = torch.zeros(1 << 16)
        pageable.copy_(x, non_blocking=True)
        assert stream.query()
        assert pageable.sum() == 1 << 16


@pytest.mark.ranks(1, init="none", fresh=True)
def test_freed_memory_is_poisoned_and_used_again() -> None:
    stand_in.load()
    x = torch.ones(1000, device="fake")
    address = x.data_ptr()
    before = stand_in.load().allocated_bytes(0)
    del x
    assert stand_in.load().allocated_bytes(0) == before - 4096
    y = torch.empty(1000, device="fake")
    assert y.data_ptr() == address
    assert torch.isnan(y).all().item()


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.ranks(1, init="none", fresh=True)
def test_record_stream_keeps_memory(records: bool) -> None:
    stand_in.load()
    side = torch.Stream("fake")
    x = torch.ones(1000, device="fake")
    result = torch.empty(1000, pin_memory=True)
    with stand_in.paused(side):
        side.wait_stream(torch.fake.current_stream())
        with side:
            result.copy_(x, non_blocking=True)
        if records:
            x.record_stream(side)
        address = x.data_ptr()
        del x
        again = torch.empty(1000, device="fake")
        assert (again.data_ptr() == address) == (not records)
        torch.fake.current_stream().synchronize()
    side.synchronize()
    assert (result == 1).all() if records else result.isnan().all()


@pytest.mark.ranks(1, init="none", fresh=True)
def test_devices_are_separate() -> None:
    stand_in.load()
    x = torch.ones(4, device="fake:0")
    with stand_in.paused(torch.fake.current_stream(0)):
        x += 1
        y = x.to("fake:1", non_blocking=True)
        z = torch.ones(4, device="fake:1", dtype=torch.float64)
        assert y.device == torch.device("fake", 1)
        assert not torch.fake.current_stream(1).query()  # waits for the copy
    assert (y + z).tolist() == [3] * 4


@pytest.mark.ranks(1, init="none", fresh=True)
def test_copies_take_the_time_of_their_rate() -> None:
    stand_in.load().set_copy_rate(1e9)
    one, two = torch.Stream("fake"), torch.Stream("fake")
    x = torch.ones(1 << 20, device="fake")
    torch.fake.synchronize()
    host = [torch.empty(1 << 20, pin_memory=True) for _ in range(2)]
    begin = [torch.Event("fake", enable_timing=True) for _ in range(2)]
    end = [torch.Event("fake", enable_timing=True) for _ in range(2)]
    for i, stream in enumerate((one, two)):
        with stream:
            begin[i].record()
            host[i].copy_(x, non_blocking=True)
            end[i].record()
    torch.fake.synchronize()
    assert min(begin[i].elapsed_time(end[i]) for i in range(2)) >= 4.1
    # One engine: one copy waits for the other.
    assert max(b.elapsed_time(e) for b in begin for e in end) >= 8.3
