"""Options that cannot be carried out are refused where they are made, with what is accepted."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import q7x2
import torch.distributed as dist
from q7x2._core.units import parse_size
from q7x2.cli import main
from q7x2.hooks.options import LionUpdate, MeanMomentum

CODECS = "int8"  # one of those that the message must list


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: q7x2.Quantize("nonsense"), CODECS),
        (lambda: q7x2.Quantize(-3), CODECS),
        (lambda: q7x2.Quantize(None), CODECS),
        (lambda: q7x2.policy.BitAllocation("int4", ("int2", "int9")), "choices: .*int9"),
        (lambda: q7x2.policy.BitAllocation("int4", "int2"), "choices must be a tuple or a list"),
        (lambda: q7x2.policy.BitAllocation("int4", ()), "choices must have at least one codec"),
        (
            lambda: q7x2.policy.BitAllocation("int4", ["int2"], decide_every=0),
            "decide_every must be at least 1",
        ),
        (
            lambda: q7x2.policy.BitAllocation("int4", ["int2"], decide_every=2.5),
            "decide_every must be an int",
        ),
        (lambda: q7x2.policy.Accordion("int8", "int2", change=0), "change must be positive"),
        (lambda: q7x2.policy.Accordion(4, 0), "strong must be at least 1"),
        (lambda: q7x2.policy.Accumulate(0), "reduce_every must be at least 1"),
        (lambda: q7x2.policy.ErrorBudget(["int8"]), "levels must be at least two"),
        (lambda: q7x2.policy.ErrorBudget(["int2", "int9"]), "levels: .*int9"),
        (lambda: q7x2.policy.ErrorBudget(["whole", "int8"]), "'whole' must be the last one"),
        (lambda: q7x2.policy.ErrorBudget(["int2", 4]), "levels must be codecs or ranks"),
        (lambda: q7x2.policy.ErrorBudget([1, 4], start=2), "start must be at most 1"),
        (lambda: q7x2.policy.ErrorBudget([1, 4], probe_every=0), "probe_every must be at least 1"),
        (
            lambda: q7x2.policy.ParameterPolicy("int8", whole=True, skip=True),
            "cannot travel whole and be",
        ),
        (lambda: q7x2.Quantize(use_error_feedback="no"), "use_error_feedback must be True or"),
        (lambda: q7x2.Quantize(random_seed=-1), "random_seed must be an int from 0 to"),
        (lambda: q7x2.Quantize(random_seed=2**64), "random_seed must be an int from 0 to"),
        (
            lambda: q7x2.Quantize(edges="hosts"),
            "edges: expected one of auto, all, host, rack, slow",
        ),
        (lambda: q7x2.TopK(edges=None), "edges: expected one of auto, .*got 'None'"),
        (lambda: q7x2.SignSGD(edges="host"), "vote of all ranks: expected edges auto or all"),
        (lambda: q7x2.Quantize(start_iter=-1), "start_iter must not be negative"),
        (lambda: q7x2.Quantize(start_iter=1.5), "start_iter must be an int"),
        (lambda: q7x2.Quantize(burst_every=0), "burst_every must be at least 1"),
        (lambda: q7x2.Quantize(burst_every=4, burst_steps=4), "burst_steps must be"),
        (lambda: q7x2.Quantize(burst_steps=0), "burst_steps must be at least 1"),
        (lambda: q7x2.Quantize(full_precision="*.bias"), "full_precision must be a tuple or a"),
        (lambda: q7x2.TopK(0.0), "ratio must be more than 0 and at most 1"),
        (lambda: q7x2.TopK("0.1"), "ratio must be more than 0 and at most 1, got '0.1'"),
        (lambda: q7x2.TopK(values="int9"), "values: .*int9"),
        (lambda: q7x2.TopK(values="topk:0.1"), "values: "),
        (lambda: q7x2.TopK(selection="fuzzy"), "selection must be 'exact' or 'sampled'"),
        (lambda: q7x2.TopK(momentum=1), "momentum must be at least 0 and less than 1"),
        (lambda: q7x2.TopK(clip_norm=float("nan")), "clip_norm must be positive"),
        (lambda: q7x2.TopK(warmup_stages=-1), "warmup_stages must not be negative"),
        (lambda: q7x2.TopK(start_iter=0.5), "start_iter must be an int"),
        (lambda: q7x2.OneBit(group_size=3), "group_size: .*power of two"),
        (lambda: q7x2.SignSGD(momentum="high"), "momentum must be at least 0"),
        (lambda: MeanMomentum("onebyte"), "codec: .*onebit"),
        (lambda: MeanMomentum(momentum=1.0), "momentum must be at least 0"),
        (lambda: q7x2.EF21(hook=q7x2.SignSGD()), "hook must compress gradients, as TopK"),
        (lambda: q7x2.EF21(hook=q7x2.TopK(momentum=0.9)), "hook must compress gradients, as TopK"),
        (lambda: q7x2.EF21(hook=q7x2.Allreduce()), "hook must compress .*Allreduce"),
        (lambda: q7x2.EF21(q7x2.TopK(0.01)), r"codec is a name: expected hook=TopK\("),
        (
            lambda: q7x2.policy.ParameterPolicy("int8", rank=4),
            "a codec or a rank, got 'int8'",
        ),
        (
            lambda: q7x2.EF21(hook=q7x2.PowerSGD(use_error_feedback=False)),
            "expected a codec with error feedback",
        ),
        (lambda: LionUpdate(kept_momentum=1.0), "kept_momentum must be at least 0"),
        (lambda: q7x2.PowerSGD(rank=-1), "rank must not be negative"),
        (lambda: q7x2.PowerSGD(factors="int8"), "factors must be 'fp32', 'bf16' or 'fp16'"),
        (lambda: q7x2.PowerSGD(min_compression_rate=0), "min_compression_rate must be more than 0"),
        (lambda: q7x2.PowerSGD(warm_start=1), "warm_start must be True or False"),
        (lambda: q7x2.PowerSGD(random_seed="x"), "random_seed must be an int"),
        (lambda: q7x2.Compose({}), "hooks must be a dict of hooks by pattern"),
        (lambda: q7x2.Compose({"*": "int8"}), "hooks must be a dict of hooks by pattern"),
        (lambda: q7x2.Options(algorithms="nonsense"), "expected .*ring.*did you mean"),
        (lambda: q7x2.Options(algorithms="ring:2"), "'ring' takes no parameter"),
        (lambda: setattr(q7x2.Options(), "algorithms", "rung"), "did you mean 'ring'"),
        (lambda: q7x2.collectives.algorithm("rung").__enter__(), "did you mean 'ring'"),
    ],
)
def test_bad_options_are_refused_when_they_are_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "old", "new"),
    [
        (lambda: q7x2.TopK(warmup_steps=10), "warmup_steps", "start_iter"),
        (lambda: q7x2.TopK(0.1, threshold="sampled"), "threshold", "selection"),
        (lambda: q7x2.optim.OneBitAdam(None, freeze_step=10), "freeze_step", "start_iter"),
        (lambda: q7x2.cadence.DiLoCo(None, None, compressor="int4"), "compressor", "codec"),
        (lambda: q7x2.cadence.DiLoCo(None, None, every=3), "every", "sync_every"),
        (lambda: q7x2.policy.ParameterPolicy(compressor=4), "compressor", "codec or rank"),
        (lambda: q7x2.hooks.Compressed(compressor="codec"), "compressor", "name"),
    ],
)
def test_old_names_say_the_new_ones(make: Callable[[], Any], old: str, new: str) -> None:
    with pytest.raises(TypeError, match=f"has no argument '{old}': use '{new}'"):
        make()


def test_good_options_are_not() -> None:
    for codec in ("int8", "int4:g=128", "topk:0.01+int8", "sumint8", "fp32", "bf16+lossless"):
        q7x2.Quantize(codec)
    q7x2.Quantize("int4", full_precision=["*.bias"])
    q7x2.policy.ErrorBudget(["int2", "int8", "whole"], start=1, layer_error=0.5, probe_every=4)
    q7x2.TopK(1, values="int8", clip_norm=1, start_iter=0, selection="sampled")
    q7x2.PowerSGD(rank={"*.weight": 2, "*": 0}, min_compression_rate=1.5)
    q7x2.PowerSGD(burst_every=2, burst_steps=1)
    q7x2.Compose({"a.*": q7x2.TopK(0.01), "*": q7x2.SignSGD(momentum=0)})
    options = q7x2.Options(algorithms=" ring , aggregator:2 ")
    options.algorithms = ""
    assert options.algorithms == ""


@pytest.mark.beyond("gloo", "reads no such variables")
@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("Q7X2_ISA", "nonsense", "Q7X2_ISA=nonsense: expected baseline, avx2 or avx512"),
        ("Q7X2_ALGO", "nonsense", "unknown algorithm 'nonsense' in 'nonsense': expected .*ring"),
        ("Q7X2_REFINE", "off", "Q7X2_REFINE=off: expected 0 or 1"),
        ("Q7X2_REACT", "30s", "Q7X2_REACT=30s: expected seconds between two changes, or 0"),
    ],
)
@pytest.mark.ranks(1, init="none", fresh=True)
def test_bad_variables_are_refused_when_the_group_is_made(
    backend: str, shared: str, variable: str, value: str, message: str
) -> None:
    os.environ[variable] = value
    with pytest.raises(ValueError, match=message):
        dist.init_process_group(
            backend, store=dist.FileStore(f"{shared}/s", 1), rank=0, world_size=1
        )


@pytest.mark.beyond("gloo", "reads no such variable")
@pytest.mark.ranks(2, init="none", fresh=True)
def test_different_algorithms_are_named_when_the_group_is_made(backend: str, shared: str) -> None:
    from harness import current_rank

    rank = current_rank()
    os.environ["Q7X2_ALGO"] = ("ring", "sra")[rank]
    with pytest.raises(dist.DistBackendError, match=r"'ring' and 'sra': Q7X2_ALGO and q7x2.Option"):
        dist.init_process_group(
            backend, store=dist.FileStore(f"{shared}/s", 2), rank=rank, world_size=2
        )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096),
        ("0", 0),
        ("64K", 64 * 1024),
        ("64KiB", 64 * 1024),
        ("64KB", 64_000),
        ("16M", 16 * 1024**2),
        ("16MiB", 16 * 1024**2),
        ("16 mib", 16 * 1024**2),
        ("16MB", 16_000_000),
        ("2g", 2 * 1024**3),
        ("2GiB", 2 * 1024**3),
        ("2GB", 2_000_000_000),
        ("7B", 7),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5M", "16X", "16iB", "16MiBs", "16 M iB"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="such as 4096, 16M or 16MiB"):
        parse_size(text)


def test_simulate_takes_binary_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--size", "16MiB", "--algorithm", "ring"]) == 0
    assert "16 MiB" in capsys.readouterr().out
