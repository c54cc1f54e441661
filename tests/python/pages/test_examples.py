"""The training example under torchrun, with real processes, and the demo that compares backends."""

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import checkpoint
import corpus
import demo
import demo_slow_link
import interpreters
import pytest
import report
import torch
import torch.distributed as dist
import train_lm
from pairs import nightly
from torch import nn
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (makes "fake" known)

EXAMPLES = Path(train_lm.__file__).parent
TINY = {"layers": 2, "dim": 64, "heads": 2, "context": 32, "batch": 4, "warmup": 4, "lr": 3e-3}
STEPS = 16
DEADLINE = 240  # seconds, of a job that takes 5 on a machine with nothing else to do

Record = dict[str, float]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | interpreters.environment()
    environment |= {"OMP_NUM_THREADS": "1", "Q7X2_REFINE": "0"}  # runs must repeat
    return subprocess.run(
        [interpreters.python(), *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    )


def torchrun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    model = [f"--{name}={value}" for name, value in TINY.items()]
    script = [str(EXAMPLES / "train_lm.py"), *model, f"--steps={STEPS}"]
    return run([*launcher, *script, *arguments])


def steps_of(log: Path) -> list[Record]:
    return [r for r in map(json.loads, log.read_text().splitlines()) if "loss" in r]


def training(steps: list[Record]) -> list[tuple[float, ...]]:
    """What the seed determines, and the machine does not."""
    return [(r["step"], r["loss"], r["gradient_norm"]) for r in steps]


@pytest.fixture(scope="module", params=["q7x2"])
def backend(request: pytest.FixtureRequest) -> str:
    if not dist.is_backend_available(request.param):
        pytest.skip(f"torch has no backend {request.param} here")
    return str(request.param)


OPTIONS = ("--dropout=0.1", "--accumulate=2")


@pytest.fixture(scope="module")
def unbroken(backend: str, tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Of three ranks, because a sum of two is the same in any order."""
    log = tmp_path_factory.mktemp("unbroken") / "log.jsonl"
    job = torchrun(3, f"--backend={backend}", f"--metrics={log}", *OPTIONS)
    assert job.returncode == 0, job.stdout
    return steps_of(log)


class TestTraining:
    def test_logs_every_step_and_learns(self, unbroken: list[Record]) -> None:
        assert [r["step"] for r in unbroken] == list(range(1, STEPS + 1))
        assert unbroken[0]["loss"] == pytest.approx(5.55, abs=0.3)  # log 256: nothing is known
        assert unbroken[-1]["loss"] < unbroken[0]["loss"] - 0.5
        for record in unbroken:
            assert 0 < record["seconds"] < DEADLINE
            assert record["communication_seconds"] < record["seconds"]
            assert record["cpu_seconds"] > 0
            expected = 3 * 2 * 4 * 32 / record["seconds"]
            assert record["tokens_per_second"] == pytest.approx(expected)

    @pytest.mark.nightly("starts torchrun twice; TestCheckpoint saves and loads")
    def test_stopped_and_resumed_is_bit_identical(
        self, backend: str, unbroken: list[Record], tmp_path: Path
    ) -> None:
        log = tmp_path / "log.jsonl"
        arguments = (f"--backend={backend}", f"--metrics={log}", f"--checkpoint-dir={tmp_path}")
        job = torchrun(3, *arguments, *OPTIONS, "--until=7")
        assert job.returncode == 0, job.stdout
        assert training(steps_of(log)) == training(unbroken[:7])  # the same seed, another run
        job = torchrun(3, *arguments, *OPTIONS, "--resume")
        assert job.returncode == 0, job.stdout
        assert training(steps_of(log)) == training(unbroken)


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--backend=q7x3", "expected one of .*gloo.*, got 'q7x3'"),
            ("--backend=cpu:gloo,cuda", "expected one of .*, got 'cpu:gloo,cuda'"),
            ("--dim=66 --heads=4", "dim must be a multiple of heads, got dim=66, heads=4"),
            ("--dropout=1.5", r"dropout must be in \[0, 1\), got 1.5"),
            ("--batch=0", "--batch: expected at least 1, got 0"),
            ("--until=20 --steps=10", "--until 20 is beyond --steps 10"),
            ("--resume", "--resume needs --checkpoint-dir"),
        ],
    )
    def test_bad_ones_say_what_was_expected(
        self,
        arguments: str,
        message: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv("RANK", "0")
        with pytest.raises(SystemExit):
            train_lm.parse_arguments(["--backend=gloo", *arguments.split()])
        assert re.search(message, capsys.readouterr().err)

    def test_without_torchrun_the_command_is_shown(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("RANK", raising=False)
        with pytest.raises(SystemExit):
            train_lm.parse_arguments(["--backend=gloo"])
        assert "torchrun --nproc-per-node" in capsys.readouterr().err


@pytest.fixture
def one_rank() -> Iterator[None]:
    # Gloo would listen on a port until this process ends.
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
class TestCheckpoint:
    RECIPE: ClassVar[dict[str, object]] = {"dim": 32, "heads": 2}

    @staticmethod
    def parts() -> tuple[nn.Module, torch.optim.Optimizer, corpus.Sampler]:
        model = nn.Linear(2, 2)
        sampler = corpus.Sampler(torch.zeros(99, dtype=torch.uint8), 8, 1, 0, 1, seed=0)
        return model, torch.optim.AdamW(model.parameters()), sampler

    def test_of_another_model_is_refused_with_what_differs(self, tmp_path: Path) -> None:
        parts = self.parts()
        checkpoint.save(tmp_path, self.RECIPE, 5, *parts)
        assert checkpoint.load(tmp_path, self.RECIPE, *parts) == 5
        with pytest.raises(SystemExit, match="was written with dim 32, not 64"):
            checkpoint.load(tmp_path, self.RECIPE | {"dim": 64}, *parts)

    def test_missing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match=f"no checkpoint at {tmp_path}"):
            checkpoint.load(tmp_path, self.RECIPE, *self.parts())

    def test_an_interrupted_write_leaves_the_old_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parts = self.parts()
        checkpoint.save(tmp_path, self.RECIPE, 5, *parts)

        def disk_full(descriptor: int) -> None:
            raise OSError("No space left on device")

        monkeypatch.setattr(os, "fsync", disk_full)
        with pytest.raises(OSError, match="No space"):
            checkpoint.save(tmp_path, self.RECIPE, 6, *parts)
        assert checkpoint.load(tmp_path, self.RECIPE, *parts) == 5


def test_a_resumed_log_drops_what_is_done_again(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in range(1, 9)))
    with report.Report(log, "title", first=6, steps=10):
        pass
    assert [r["step"] for r in steps_of(log)] == [1, 2, 3, 4, 5, 6]


class TestCorpus:
    def test_is_the_same_every_time(self) -> None:
        first, second = corpus.standard_library(), corpus.standard_library()
        assert first.digest == second.digest
        assert len(first.train) > 10 * len(first.validation) > 1_000_000

    def test_ranks_share_one_draw_and_targets_are_the_next_bytes(self) -> None:
        text = torch.randint(256, (5000,), dtype=torch.uint8)
        samplers = [corpus.Sampler(text, 16, 4, rank, 2, seed=3) for rank in range(2)]
        (x0, y0), (x1, _) = (sampler.next() for sampler in samplers)
        assert torch.equal(x0[:, 1:], y0[:, :-1])
        assert x0.shape == (4, 16)
        assert not torch.equal(x0, x1)
        assert torch.equal(samplers[0].generator.get_state(), samplers[1].generator.get_state())


class TestDemo:
    @pytest.mark.parametrize(("error", "status"), [(0.0, 0), (1e-7, 0), (1e-3, 1), (math.nan, 1)])
    def test_exits_with_1_when_losses_differ(
        self, error: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def take_turns(args: argparse.Namespace) -> None:
            for backend, factor in zip(args.backends, (1 + error, 1.0), strict=True):
                with (args.out / f"{backend}.jsonl").open("w") as log:
                    for step in range(1, args.steps + 1):
                        loss = 5.0 / step * (factor if step == args.steps else 1.0)
                        record = {"step": step, "loss": loss, "gradient_norm": 1.0}
                        record |= {"seconds": 0.2, "communication_seconds": 0.05}
                        record |= {"cpu_seconds": 0.5, "tokens_per_second": 1e4}
                        log.write(json.dumps(record) + "\n")
                    log.write(json.dumps({"step": step, "validation_loss": 2.0}) + "\n")

        monkeypatch.setattr(demo, "take_turns", take_turns)
        options = ["--steps=9", "--slow-steps=0", f"--out={tmp_path}"]
        monkeypatch.setattr(sys, "argv", ["demo.py", *options])
        assert demo.main() == status

    @pytest.mark.parametrize(
        "slow_steps", [0, nightly(3, "four more interpreters that import torch")]
    )
    def test_runs_both_backends_in_turns(self, slow_steps: int, tmp_path: Path) -> None:
        if not dist.is_backend_available("q7x2"):
            pytest.skip("torch has no backend q7x2 here")
        options = ["--ranks=2", "--steps=2", "--turns=1", f"--slow-steps={slow_steps}"]
        job = run([str(EXAMPLES / "demo.py"), *options, f"--out={tmp_path}"])
        assert job.returncode == 0, job.stdout
        assert "The same training" in job.stdout
        result = json.loads((tmp_path / "demo.json").read_text())
        assert [len(backend["loss"]) for backend in result["backends"]] == [2, 2]
        assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
        if slow_steps == 0:
            assert "slow_link" not in result
            return
        if problem := demo_slow_link.why_not():
            assert f"Without the part over slow links: {problem}" in " ".join(job.stdout.split())
            return
        slow = result["slow_link"]
        assert [len(curve["loss"]) for curve in slow["curves"]] == [3, 3]
        assert "Over links of 100mbit" in job.stdout
        first = [curve["loss"][0] for curve in slow["curves"]]
        assert first[0] == pytest.approx(first[1], rel=1e-5), "the same weights and batches"
