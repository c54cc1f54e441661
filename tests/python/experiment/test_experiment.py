"""``q7x2 experiment run``: files, runs, resumption, and verdicts."""

from __future__ import annotations

import json
import pathlib
import random
import textwrap

import pytest
from q7x2 import cli
from q7x2._core import sign_test
from q7x2.experiment import file as experiment_file
from q7x2.experiment import program as experiment_program
from q7x2.experiment import run as experiment_run

FILE = """
version = 1
name = "sleep"
command = ["{program}"]
launcher = ["env", "RANK=0"]
seeds = [0, 1, 2, 3, 4, 5]
metric = "printed:value"
{more}
[variable]
argument = "--slower"
baseline = "1.0"
variants = ["1.2"]
"""
PROGRAM = """
import sys, pathlib
seed, slower = int(sys.argv[2]), float(sys.argv[4])
log = pathlib.Path(__file__).with_suffix(".log")
with log.open("a") as file:
    file.write(f"{seed} {slower}\\n")
if seed == 4 and len(log.read_text().splitlines()) < 11:
    sys.exit("seed 4 fails at first")
print(f"value={slower * (10 + seed % 3)}")
"""


def write(directory: pathlib.Path, more: str = "", program: str = PROGRAM) -> pathlib.Path:
    script = directory / "program.py"
    script.write_text(textwrap.dedent(program))
    path = directory / "experiment.toml"
    path.write_text(FILE.format(program=script, more=more))
    return path


def test_runs_are_interleaved_and_resumed(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path)
    assert cli.main(["experiment", "run", str(path)]) == 1
    assert "seed 4 fails at first" in capsys.readouterr().err
    runs = (tmp_path / "program.log").read_text().splitlines()
    assert len(runs) == 9
    firsts = {run.split()[1] for run in runs[:8:2]}
    assert firsts == {"1.0", "1.2"}  # not always the same first
    assert cli.main(["experiment", "run", str(path)]) == 1
    assert cli.main(["experiment", "run", str(path), "--json"]) == 0
    assert len((tmp_path / "program.log").read_text().splitlines()) == 2 + 12
    (verdict,) = json.loads(capsys.readouterr().out)
    assert verdict["verdict"] == "worse"
    assert verdict["change"] == pytest.approx(0.2)
    assert cli.main(["experiment", "run", str(path)]) == 0
    assert len((tmp_path / "program.log").read_text().splitlines()) == 14  # nothing again
    assert "1.2: worse" in capsys.readouterr().out
    facts = json.loads((tmp_path / "experiment" / "experiment.json").read_text())["facts"]
    assert facts["torch"]
    path.write_text(path.read_text().replace('"sleep"', '"other"'))
    assert cli.main(["experiment", "run", str(path)]) == 1
    assert "another version of the file" in capsys.readouterr().err


@pytest.mark.usefixtures("copies")
def test_a_training_repeats_its_losses(tmp_path: pathlib.Path) -> None:
    program = """
import sys
import torch
import torch.distributed as dist
import q7x2
dist.init_process_group("q7x2")
torch.manual_seed(int(sys.argv[2]) + dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    loss = model(torch.randn(8, 20)).square().mean()
    loss.backward()
    optimizer.step()
    q7x2.log_step(loss.item())
dist.destroy_process_group()
"""
    path = write(tmp_path, program=program)
    text = path.read_text().replace('launcher = ["env", "RANK=0"]\n', "ranks = 2\n")
    text = text.replace("printed:value", "loss").replace('"1.2"', '"1.1"')
    path.write_text(text.replace("[0, 1, 2, 3, 4, 5]", "[3, 1, 2, 4, 5, 6]"))
    experiment = experiment_file.read(path)
    case = experiment_program.Case((), {}, ("--slower", "1.0"))
    folders = [tmp_path / str(run) for run in range(2)]
    losses = {experiment_program.run_once(experiment, 3, case, folder) for folder in folders}
    assert len(losses) == 1  # bit for bit
    assert losses.pop() > 0


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("version = 1", "version = 2", "version: expected 1, got 2"),
        ("[0, 1, 2, 3, 4, 5]", "[0, 1, 2]", "seeds: expected at least 6"),
        ("[0, 1, 2, 3, 4, 5]", "[0, 1, 2, 3, 4, 4]", "each seed once"),
        ('["1.2"]', '["1.0"]', "each value once"),
        ('["1.2"]', '["1.2", "1.3", "1.4"]', "at least 7 for 3 variants"),
        ('argument = "--slower"', "", "either environment or argument"),
        ("printed:value", "speed", "expected step_seconds, loss or printed:NAME"),
        ("[variable]", "speed = 3\n[variable]", "unknown entries"),
        ("[variable]", "timeout = 0\n[variable]", "timeout: expected a number"),
        ('argument = "--slower"', 'environment = "Q7X2_LEDGER"', "set by the experiment itself"),
    ],
)
def test_wrong_files_are_refused(old: str, new: str, expected: str, tmp_path: pathlib.Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=expected):
        experiment_file.read(path)


def test_a_run_that_takes_too_long_or_prints_nothing_fails(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "timeout = 1", "import time\ntime.sleep(600)")
    assert cli.main(["experiment", "run", str(path)]) == 1
    assert "longer than 1 s" in capsys.readouterr().err
    path = write(tmp_path, program="print('nothing')")
    assert cli.main(["experiment", "run", str(path), "--out", str(tmp_path / "other")]) == 1
    assert "printed no number as value" in capsys.readouterr().err


def verdict(draw: random.Random, effect: float, noise: float, number: int = 10) -> str:
    changes = []
    for _ in range(number):
        phase = draw.uniform(1, 3)  # of the machine; both of a pair meet it
        before = phase * draw.lognormvariate(0, noise)
        changes.append(phase * (1 + effect) * draw.lognormvariate(0, noise) / before - 1)
    low, high = sign_test.interval(changes, 0.95)
    return experiment_run.verdict_of(low, high, 0.0, is_larger_better=False)


def test_verdicts_are_seldom_false() -> None:
    draw = random.Random(1)
    trials = 2000
    false = sum(verdict(draw, 0.0, 0.05) != "undecided" for _ in range(trials))
    assert false / trials < 0.05
    assert all(verdict(draw, 0.2, 0.05) == "worse" for _ in range(100))
    assert all(verdict(draw, -0.2, 0.05) == "better" for _ in range(100))


def test_intervals_need_enough_values() -> None:
    assert sign_test.fewest_pairs(0.95) == 6
    assert sign_test.interval([6, 5, 4, 3, 2, 1], 0.95) == (1, 6)
    assert sign_test.interval(range(10), 0.95) == (1, 8)
    with pytest.raises(ValueError, match="at least 6 values"):
        sign_test.interval([1, 2, 3], 0.95)
