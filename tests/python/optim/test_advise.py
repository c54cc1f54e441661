"""``q7x2.advise``: the model of a step, and what is measured for it."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import pytest
import q7x2
import torch
from q7x2 import cli
from q7x2.optim.advise_measure import measure_computing
from q7x2.optim.advise_model import Computing, Reducing, accumulation, buckets_of, step_seconds
from q7x2.optim.advise_price import NONE, price_of
from torch import nn

COMPUTING = Computing(
    seconds=1.0, ready=[1.0, 0.8, 0.6, 0.4], bytes=[100, 100, 100, 100], cpu_seconds=1.0
)


def test_buckets_are_filled_from_the_last_parameter() -> None:
    assert buckets_of([100] * 4, 1) == [[3], [2], [1], [0]]
    assert buckets_of([100] * 4, 150) == [[3, 2], [1, 0]]
    assert buckets_of([100] * 4, 400) == [[3, 2, 1, 0]]
    assert buckets_of([10, 300, 10], 20) == [[2, 1], [0]]


def test_buckets_are_filled_in_the_order_in_which_gradients_arrive() -> None:
    ready = [0.2, 0.8, 0.4, 0.6]
    assert buckets_of([100] * 4, 200, ready) == [[0, 2], [3, 1]]
    computing = Computing(1.0, ready, [100] * 4, 1.0)
    reducing = Reducing(0.0, 0.002, drain_per_byte=0.0, cpu_seconds=0.0)
    buckets = buckets_of(computing.bytes, 200, ready)
    assert math.isclose(step_seconds(computing, reducing, buckets, 2), 0.8 + 0.4)


class Backwards(nn.Module):
    """Its layers are registered in the opposite order of that in which they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64 + 64 * (i == 0), bias=False) for i in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in reversed(self.layers):
            x = torch.tanh(layer(x))
        return x


@pytest.mark.ranks(2)
def test_buckets_are_those_of_ddp() -> None:
    import torch.distributed as dist

    ddp = nn.parallel.DistributedDataParallel(Backwards(), bucket_cap_mb=0.03)
    for _ in range(3):
        ddp(torch.ones(2, 64)).square().sum().backward()
    computing = measure_computing(
        Backwards(), lambda of: of(torch.ones(2, 64)).square().sum().backward(), dist.group.WORLD, 3
    )
    logged = ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    buckets = buckets_of(computing.bytes, int(0.03 * (1 << 20)), computing.ready)
    sizes = [sum(computing.bytes[position] for position in bucket) for bucket in buckets]
    assert sizes == [int(size) for size in str(logged).split(",")] == [32768, 32768, 16384]


def test_prices_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "decide.md").read_text()
    row = re.compile(
        r"^\| `q7x2\.(\w+)\((.*)\)` \|.*\| ([-+\d.]+ \([-+\d.]+ to [-+\d.]+\)) \|", re.M
    )
    prices = 0
    for name, argument, price in row.findall(page):
        given = dict.fromkeys(["rank"], int(argument[5:])) if "rank=" in argument else {}
        if name != "Quantize":
            given["start_iter"] = 0
        arguments = [] if "rank=" in argument or not argument else [ast.literal_eval(argument)]
        assert str(price_of(getattr(q7x2, name)(*arguments, **given))) == price
        prices += 1
    assert prices == 7
    defaults = re.search(r"uncompressed: (.*)\.$", page, re.M)
    assert defaults is not None
    hooks = (q7x2.PowerSGD(rank=8), q7x2.PowerSGD(rank=4), q7x2.OneBit(), q7x2.TopK(0.01))
    assert re.findall(r"[-+][\d.]+\d", defaults[1]) == [f"{price_of(h).loss:+.4f}" for h in hooks]
    assert price_of(q7x2.Allreduce()) == NONE
    for unmeasured in (q7x2.PowerSGD(rank=4, alternating=True), q7x2.Quantize("int2")):
        assert price_of(unmeasured) is None


def advice(*measured: tuple[q7x2.hooks.HookOptions, float]) -> q7x2.optim.Advice:
    proposals = [
        q7x2.optim.Proposal(hook, 25, seconds, 1, 1, 1, True) for hook, seconds in measured
    ]
    dense = min(s for hook, s in measured if hook == q7x2.Allreduce())
    return q7x2.optim.Advice(proposals, 1.0, 1000, dense, 0.1)


def test_of_equally_fast_hooks_the_one_with_the_lower_price_is_best() -> None:
    rank4, int8 = q7x2.PowerSGD(rank=4, start_iter=0), q7x2.Quantize("int8")
    close = advice((rank4, 1.00), (int8, 1.04), (q7x2.Allreduce(), 1.59))
    assert close.best.hook == int8
    assert "1.53 x faster steps with Quantize()" in str(close)
    assert "+0.0792 (+0.0616 to +0.0967)  PowerSGD" in str(close)
    assert max(map(len, str(close).splitlines()[-5:])) <= 80
    assert advice((rank4, 1.00), (int8, 1.10), (q7x2.Allreduce(), 1.59)).best.hook == rank4
    assert advice((rank4, 1.00), (q7x2.Allreduce(), 1.04)).best.hook == q7x2.Allreduce()


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
    assert len(tried) in (2, 3, 4)
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
