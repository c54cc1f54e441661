"""``q7x2 experiment run --tune``: the search, the held-out network, resumption, and wrong files.

The program prints a time that follows from its setting, its network and its seed.
"""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Sequence
from typing import Any

import pytest
from q7x2 import cli
from q7x2.experiment import search as experiment_search
from q7x2.experiment import tune as experiment_tune
from q7x2.experiment import tune_file as experiment_tune_file

FILE = """
version = 1
name = "tuned"
command = ["-IS", "{folder}/program.py"]
launcher = ["env", "RANK=0"]
seeds = [0, 1, 2, 3, 4, 5]
metric = "printed:seconds"
margin = 0.05

[tune]
budget = 20

[[tune.variables]]
environment = "ALGO"
baseline = "ring"
variants = ["sra"]

[[tune.variables]]
argument = "--bucket"
baseline = "25"
variants = ["10", "50"]

[[tune.networks]]
name = "fast"
environment = {{ NETWORK = "fast" }}

[tune.held_out]
name = "slow"
environment = {{ NETWORK = "slow" }}
start = ["sh", "-c", "echo start >> {folder}/lab.log"]
stop = ["sh", "-c", "echo stop >> {folder}/lab.log"]
"""
PROGRAM = """
import os, pathlib, sys
seed, setting = int(sys.argv[2]), (os.environ["ALGO"], sys.argv[4])
with pathlib.Path(__file__).with_suffix(".log").open("a") as log:
    log.write(f"{{os.environ['NETWORK']}} {{seed}} {{' '.join(setting)}}\\n")
if pathlib.Path(__file__).with_name("broken").exists() and seed == 7:
    sys.exit("the machine is broken")
factor = {factors}[os.environ["NETWORK"]].get(setting, 1.0)
print(f"seconds={{factor * (10 + seed % 7)}}")
"""
NETWORK = '[[tune.networks]]\nname = "fast"\nenvironment = { NETWORK = "fast" }\n'
SINGLE_VARIABLES = {("sra", "25"): 1.1, ("ring", "50"): 1.1}  # worse alone, but not together
BEST = {("sra", "50"): 0.8}


def write(directory: pathlib.Path, factors: dict[str, Any]) -> pathlib.Path:
    (directory / "program.py").write_text(PROGRAM.format(factors=factors))
    path = directory / "tuned.toml"
    path.write_text(FILE.format(folder=directory))
    return path


def tune(path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["experiment", "run", str(path), "--tune", "--json"]) == 0
    outcome: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert json.loads((path.with_suffix("") / "tuning.json").read_text()) == outcome
    return outcome


def runs(path: pathlib.Path, network: str) -> list[list[str]]:
    """Seed, algorithm and bucket of each run on a network, in their order."""
    lines = path.with_name("program.log").read_text().splitlines()
    return [line.split()[1:] for line in lines if line.startswith(f"{network} ")]


def test_the_best_combination_is_found_and_validated(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, {"fast": SINGLE_VARIABLES | BEST, "slow": {("sra", "50"): 0.9}})
    outcome = tune(path, capsys)
    assert outcome["adopt"]
    assert outcome["old"] == {"ALGO": "ring", "--bucket": "25"}
    assert outcome["winner"] == {"ALGO": "sra", "--bucket": "50"}
    assert outcome["gains"] == {"fast": pytest.approx(0.2)}
    assert outcome["held_out"]["change"] == pytest.approx(-0.1)
    searched, validated = runs(path, "fast"), runs(path, "slow")
    assert len(searched) <= 20
    assert {each[0] for each in validated} == set("012345")
    assert not {each[0] for each in validated} & {each[0] for each in searched}
    pairs = [validated[i : i + 2] for i in range(0, 12, 2)]
    assert all(first[0] == second[0] for first, second in pairs)  # one after the other
    assert len({first[1] for first, _ in pairs}) == 2  # and not always the same first
    assert (tmp_path / "lab.log").read_text() == "start\nstop\n"
    assert cli.main(["experiment", "run", str(path), "--tune"]) == 0
    report = capsys.readouterr().out
    assert "gain on fast, where it was chosen: +20.00 %" in report
    assert "gain on slow, where it was not: +10.00 % (+10.00 to +10.00 at 95 %, 6 pairs)" in report
    assert "adopt the winner" in report
    assert runs(path, "fast") + runs(path, "slow") == searched + validated  # nothing again
    assert (tmp_path / "lab.log").read_text() == "start\nstop\n"


@pytest.mark.parametrize(
    ("fast", "slow", "why", "validations"),
    [
        pytest.param(
            *(0.8, 1.2, "not proven better by more than 5 % on slow", 12),
            marks=pytest.mark.nightly("a gain within the margin has the same end"),
        ),
        (0.8, 0.96, "not proven better by more than 5 % on slow", 12),  # within the margin
        (0.96, 0.5, "no setting gained more than the margin of 5 % on fast", 0),
        (0.8, None, "the winner failed on slow", 2),
    ],
)
def test_the_old_setting_stays_unless_the_gain_is_proven(
    fast: float,
    slow: float | None,
    why: str,
    validations: int,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path, {"fast": {("sra", "10"): fast}, "slow": {("sra", "10"): slow}})
    outcome = tune(path, capsys)
    assert not outcome["adopt"]
    assert outcome["winner"] == {"ALGO": "sra", "--bucket": "10"}
    assert why in outcome["why"]
    settings = [each for each in runs(path, "slow") if each[1:] == ["sra", "10"]]
    assert len(settings) == validations // 2
    assert cli.main(["experiment", "run", str(path), "--tune"]) == 0
    assert "keep the old setting" in capsys.readouterr().out


def test_larger_may_be_better(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, {each: {("ring", "10"): 1.3} | BEST for each in ("fast", "slow")})
    path.write_text(path.read_text().replace("margin =", 'better = "larger"\nmargin ='))
    outcome = tune(path, capsys)
    assert outcome["winner"] == {"ALGO": "ring", "--bucket": "10"}
    assert outcome["gains"] == {"fast": pytest.approx(0.3)}
    assert outcome["adopt"]


def test_a_setting_that_fails_is_left_out(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = {("sra", "50"): None, ("sra", "10"): 0.8}
    path = write(tmp_path, {"fast": factors, "slow": factors})
    outcome = tune(path, capsys)
    assert outcome["failed"] == [{"ALGO": "sra", "--bucket": "50"}]
    assert outcome["winner"] == {"ALGO": "sra", "--bucket": "10"}
    assert outcome["adopt"]
    assert sum(each[1:] == ["sra", "50"] for each in runs(path, "fast")) == 1


def test_a_tuning_that_was_stopped_goes_on(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, {"fast": BEST, "slow": BEST})
    (tmp_path / "broken").touch()
    assert cli.main(["experiment", "run", str(path), "--tune"]) == 1
    assert "the machine is broken" in capsys.readouterr().err
    before = runs(path, "fast")
    (tmp_path / "broken").unlink()
    outcome = tune(path, capsys)
    # On a machine that is broken all settings fail. That speaks against none of them.
    assert outcome["failed"] == []
    assert outcome["winner"] == {"ALGO": "sra", "--bucket": "50"}
    done = [each for each in before if each[0] != "7"]
    assert done
    after = runs(path, "fast")[len(before) :]
    assert not [each for each in after if each in done]  # not again
    path.write_text(path.read_text().replace("budget = 20", "budget = 30"))
    assert cli.main(["experiment", "run", str(path), "--tune"]) == 1
    assert "another version of the file" in capsys.readouterr().err


def test_a_network_is_stopped_after_a_failure_too(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, {"fast": BEST, "slow": {("ring", "25"): None}})
    assert cli.main(["experiment", "run", str(path), "--tune"]) == 1
    assert (tmp_path / "lab.log").read_text() == "start\nstop\n"
    text = path.read_text().replace("echo start", "echo no lab; exit 3; echo")
    path.write_text(text)
    out = ["--out", str(tmp_path / "other")]
    capsys.readouterr()
    assert cli.main(["experiment", "run", str(path), "--tune", *out]) == 1
    assert "for slow ended with status 3:\nno lab" in capsys.readouterr().err


def test_a_setting_counts_as_on_its_worst_network(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = {
        "fast": {("sra", "10"): 0.5, ("sra", "50"): 0.9},
        "far": {("sra", "10"): 1.2, ("sra", "50"): 0.9},
        "slow": BEST,
    }
    path = write(tmp_path, factors)
    far = '[[tune.networks]]\nname = "far"\nenvironment = { NETWORK = "far" }\n\n[tune.held_out]'
    path.write_text(path.read_text().replace("[tune.held_out]", far))
    outcome = tune(path, capsys)
    assert outcome["winner"] == {"ALGO": "sra", "--bucket": "50"}
    assert outcome["gains"] == {"fast": pytest.approx(0.1), "far": pytest.approx(0.1)}
    assert len(runs(path, "fast") + runs(path, "far")) <= 20


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("budget = 20", "", "budget: is missing"),
        ("budget = 20", "budget = 1", "budget: expected at least 2 runs, got 1"),
        ("budget = 20", "budget = 20\nspeed = 3", r"unknown entries \['speed'\]"),
        ('"--bucket"', '"ALGO"', "variables: expected each name once"),
        ('variants = ["sra"]', "variants = []", "at least one variant"),
        ('name = "slow"', 'name = "fast"', "held_out: expected each name once"),
        ("[0, 1, 2, 3, 4, 5]", "[0, 1, 2]", "seeds: expected at least 6"),
        ('NETWORK = "slow"', 'ALGO = "sra"', "ALGO is under test"),
        ("[tune]", "[variable]\n[tune]", r"unknown entries \['variable'\]"),
        (NETWORK, "", r"networks: expected at least one \[\[tune.networks\]\]"),
    ],
)
def test_wrong_files_are_refused(old: str, new: str, expected: str, tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, {})
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=expected):
        experiment_tune_file.read(path)


def test_the_held_out_network_must_be_another_one(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, {})
    text = path.read_text().replace('NETWORK = "slow"', 'NETWORK = "fast"')
    path.write_text("".join(line for line in text.splitlines(True) if "lab.log" not in line))
    with pytest.raises(ValueError, match="a network that the search does not use"):
        experiment_tune_file.read(path)


def test_each_kind_of_file_names_the_other_command(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, {})
    assert cli.main(["experiment", "run", str(path)]) == 1
    assert "expected q7x2 experiment run --tune" in capsys.readouterr().err
    path.write_text(path.read_text().partition("[tune]")[0])
    assert cli.main(["experiment", "run", str(path), "--tune"]) == 1
    assert "expected [tune]" in capsys.readouterr().err


@pytest.mark.parametrize("budget", [2, 11, 12, 20, 1000])
def test_a_budget_is_used_and_not_exceeded(budget: int, tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, {})
    path.write_text(path.read_text().replace("budget = 20", f"budget = {budget}"))
    tuning = experiment_tune_file.read(path)
    runs = 0

    def measure(
        _: object, seeds: Sequence[int], settings: Sequence[experiment_search.Setting]
    ) -> dict[experiment_search.Setting, list[float]]:
        nonlocal runs
        runs += len(seeds) * len(settings)
        return {each: [1.0] * len(seeds) for each in settings}

    found = experiment_search.search(tuning, lambda old, new: old / new - 1, measure)
    assert found.winner is not None
    assert runs <= budget
    tried = experiment_search.candidates(tuning)
    assert tuning.old not in tried
    assert len(set(tried)) == len(tried) == {2: 1, 11: 4, 12: 4}.get(budget, 5)
    assert runs > budget / 2 or len(tried) < 5


@pytest.mark.parametrize(("effect", "adopted"), [(1.0, (0, 0.05)), (0.7, (0.95, 1))])
def test_noise_is_seldom_adopted(
    effect: float, adopted: tuple[float, float], tmp_path: pathlib.Path
) -> None:
    path = write(tmp_path, {})
    path.write_text(path.read_text().replace("margin = 0.05", "margin = 0"))
    tuning = experiment_tune_file.read(path)
    draw = random.Random(5)

    def measure(
        _: object, seeds: Sequence[int], settings: Sequence[experiment_search.Setting]
    ) -> dict[experiment_search.Setting, list[float]]:
        phases = [draw.uniform(1, 3) for _ in seeds]  # of the machine; all of a turn meet them
        return {
            each: [
                phase * (effect if each == ("sra", "50") else 1) * draw.lognormvariate(0, 0.05)
                for phase in phases
            ]
            for each in settings
        }

    trials = 300
    number = sum(experiment_tune.decide(tuning, measure).adopt for _ in range(trials))
    assert adopted[0] <= number / trials <= adopted[1]
