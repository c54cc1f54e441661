"""``q7x2.advise``: the model of a step, and what is measured for it."""

from __future__ import annotations

import math

import pytest
import q7x2
import torch
from q7x2 import cli
from q7x2._advise_model import Computing, Reducing, accumulation, buckets_of, step_seconds
from torch import nn

COMPUTING = Computing(
    seconds=1.0, ready=[1.0, 0.8, 0.6, 0.4], bytes=[100, 100, 100, 100], cpu_seconds=1.0
)


def test_buckets_are_filled_from_the_last_parameter() -> None:
    assert buckets_of([100] * 4, 1) == [[3], [2], [1], [0]]
    assert buckets_of([100] * 4, 150) == [[3, 2], [1, 0]]
    assert buckets_of([100] * 4, 400) == [[3, 2, 1, 0]]
    assert buckets_of([10, 300, 10], 20) == [[2, 1], [0]]


def test_buckets_wait_for_their_gradients_and_for_each_other() -> None:
    def seconds(per_byte: float, cap: int, per_bucket: float = 0.0, cores: float = 2) -> float:
        reducing = Reducing(per_bucket, per_byte, drain_per_byte=0.0, cpu_seconds=0.5)
        return step_seconds(COMPUTING, reducing, buckets_of(COMPUTING.bytes, cap), cores)

    assert seconds(0.0, 100) == 1.0
    assert math.isclose(seconds(0.001, 100), 1.1)  # all but the last bucket is hidden
    assert math.isclose(seconds(0.001, 400), 1.4)  # nothing is
    assert math.isclose(seconds(0.01, 100), 0.4 + 4.0)  # the network is the bottleneck
    assert math.isclose(seconds(0.0, 100, per_bucket=0.3), 0.4 + 4 * 0.3)
    assert math.isclose(seconds(0.0, 100, cores=0.5), 3.0)  # the cores are


@pytest.mark.parametrize(
    ("few", "many"), [((1, 1.5), (5, 3.5)), ((1, 2.0), (5, 1.2)), ((2, 1.0), (2, 1.0))]
)
def test_a_prediction_fits_what_was_measured(
    few: tuple[int, float], many: tuple[int, float]
) -> None:
    reducing = Reducing.through(few, many, total=1000, cpu_seconds=0.1)
    for count, seconds in (few, many):
        at_once = Computing(0.0, [0.0] * count, [1000 // count] * count, 0.0)
        buckets = buckets_of(at_once.bytes, 1)
        assert math.isclose(step_seconds(at_once, reducing, buckets, 1.0), seconds)


def test_accumulation_hides_what_is_beyond_computing() -> None:
    assert accumulation(1.0, 1.05, 0.1, 100) == 1
    assert accumulation(1.0, 1.5, 0.1, 100) == 5
    assert accumulation(1.0, 1e6, 0.1, 100) == 100


@pytest.mark.ranks(2)
def test_proposals_are_predicted_and_equal_on_all_ranks() -> None:
    import torch.distributed as dist

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    before = [p.clone() for p in model.parameters()]
    x = torch.randn(32, 64)
    hooks = [q7x2.Quantize("int4"), q7x2.PowerSGD(rank=4, start_iter=0)]
    groups = len(dist.distributed_c10d._world.pg_map)

    def step(of: nn.Module) -> None:
        of(x).square().mean().backward()

    advice = q7x2.advise(model, step, hooks=hooks, repeats=1, trials=2)
    assert {type(p.hook) for p in advice.proposals} == {
        q7x2.Allreduce,
        q7x2.Quantize,
        q7x2.PowerSGD,
    }
    assert len(dist.distributed_c10d._world.pg_map) == groups
    assert advice.gradient_bytes == 4 * sum(p.numel() for p in model.parameters())
    tried = [p for p in advice.proposals if p.is_measured]
    assert len(tried) in (2, 3)
    assert any(isinstance(p.hook, q7x2.Allreduce) for p in tried)
    assert list(advice.proposals[: len(tried)]) == tried
    for some in (tried, advice.proposals[len(tried) :]):
        steps = [p.step_seconds for p in some]
        assert steps == sorted(steps)
    assert not any(p._backward_hooks for p in model.parameters())
    assert "PowerSGD(start_iter=0)" in str(advice)
    assert isinstance(advice.best.hook, q7x2.Allreduce) != advice.compression_pays
    everybody = [None] * 2
    dist.all_gather_object(everybody, repr(advice))
    assert everybody[0] == everybody[1]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with pytest.raises(ValueError, match=r"step made no gradient of 0\.weight"):
        q7x2.advise(model, lambda of: None, hooks=hooks, repeats=1)


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ("train:setup", "start it with torchrun"),
        ("math", "expected MODULE:FUNCTION, got 'math'"),
        ("math:nothing", "module math has no function 'nothing'"),
    ],
)
def test_the_command_says_what_is_missing(
    setup: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if "math" in setup:
        monkeypatch.setenv("RANK", "0")
    assert cli.main(["advise", setup]) == 1
    assert message in capsys.readouterr().err
