"""`./dev gpu` as far as a machine without a GPU can run it; and its benchmarks on CPU tensors."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests.gpu import build, measure, needs, tests
from tests.gpu.runner import (
    Report,
    Result,
    Session,
    Stage,
    StageFailed,
    StageSkipped,
    run_stages,
)
from tests.gpu.stages import STAGES

MACHINE = {
    "gpus": ["a GPU"],
    "driver": "for CUDA 13.0",
    "cuda": "13.0",
    "nvcc": "13.0.88",
    "commit": "abc",
    "cpu": "a CPU",
    "cores": 2,
    "kernel": "6",
    "torch": "2.11.0",
    "ucx": "1.22.0",
    "q7x2": "0.1.0",
}
needs_no_driver = pytest.mark.skipif(
    needs.driver_problem() is None, reason="this machine has a driver"
)


def _dev(repository: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [repository / "dev", "gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


@needs_no_driver
def test_a_machine_without_a_driver_is_refused(repository: pathlib.Path) -> None:
    done = _dev(repository)
    assert done.returncode == 1
    assert "needs a machine with an NVIDIA GPU; no NVIDIA driver" in done.stderr


def test_stages_are_listed(repository: pathlib.Path) -> None:
    done = _dev(repository, "--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [s.name for s in STAGES]
    unknown = _dev(repository, "nonsense")
    assert unknown.returncode == 1
    assert "no stage nonsense; there are build, " in unknown.stderr


def test_every_stage_fits_in_ten_minutes() -> None:
    assert all(stage.limit_s < 600 for stage in STAGES)


def test_each_thing_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDACXX", "nvcc")
    monkeypatch.setattr(needs, "torch_problem", lambda: "torch: another one")
    names = [line.split(":")[0] for line in needs.missing()]
    for name in (*needs.TOOLS, "nvcc", *needs.LIBRARIES, "torch"):
        assert name in names
    assert "pytest" not in names


def _passes(session: Session) -> Result:
    said = session.call(
        sys.executable, "-c", "import os; print(os.environ['WORD'])", env={"WORD": "hello"}
    )
    return Result({"said": said.strip()}, "| a table |\n| --- |\n")


def _fails(session: Session) -> Result:
    session.call(sys.executable, "-c", "print('before'); raise SystemExit(3)")
    raise AssertionError("not reached")


def _hangs(session: Session) -> Result:
    session.call("sh", "-c", "sleep 600; true")  # the shell has a child, which holds the pipe
    raise AssertionError("not reached")


def _breaks(session: Session) -> Result:
    raise KeyError("what")


def _skips(session: Session) -> Result:
    raise StageSkipped("there is no tool")


FAKE_STAGES = [
    Stage("passes", "prints a word", 60, _passes),
    Stage("fails", "exits with 3", 60, _fails),
    Stage("hangs", "does not end", 0.5, _hangs),
    Stage("breaks", "raises", 60, _breaks),
    Stage("skips", "lacks a tool", 60, _skips),
]


def test_a_stage_that_fails_does_not_stop_the_others(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(tmp_path / "out", MACHINE)
    assert run_stages(FAKE_STAGES, report, tmp_path) == ["fails", "hangs", "breaks"]
    stages = json.loads((tmp_path / "out/gpu.json").read_text())["stages"]
    assert {name: entry["status"] for name, entry in stages.items()} == {
        "passes": "passed",
        "fails": "failed",
        "hangs": "failed",
        "breaks": "failed",
        "skips": "skipped",
    }
    assert stages["passes"]["figures"] == {"said": "hello"}
    assert stages["fails"]["reason"].endswith("exited with 3")
    assert stages["hangs"]["reason"].endswith("was ended after 0.5 s")
    assert stages["breaks"]["reason"] == "KeyError: 'what'"
    assert stages["skips"]["reason"] == "there is no tool"
    assert "before\n" in (tmp_path / "out/gpu.log").read_text()
    text = (tmp_path / "out/gpu.md").read_text()
    assert "a GPU; driver for CUDA 13.0" in text
    assert "| skips | skipped |" in text
    assert "## passes\n\n| a table |" in text
    assert "==> summary" in capsys.readouterr().out


def test_results_of_earlier_calls_stay_for_the_same_machine_and_commit(
    tmp_path: pathlib.Path,
) -> None:
    passes, *_, skips = FAKE_STAGES
    run_stages([passes], Report(tmp_path, MACHINE), tmp_path)
    assert run_stages([skips], Report(tmp_path, MACHINE), tmp_path) == []
    assert list(Report(tmp_path, MACHINE).stages) == ["passes", "skips"]
    assert Report(tmp_path, {**MACHINE, "commit": "def"}).stages == {}
    assert Report(tmp_path, {**MACHINE, "gpus": ["another"]}).stages == {}


def _gtest_report(path: pathlib.Path, results: dict[str, str]) -> pathlib.Path:
    cases = [{"name": name, "result": result} for name, result in results.items()]
    path.write_text(json.dumps({"testsuites": [{"name": "Cuda", "testsuite": cases}]}))
    return path


def test_a_test_that_is_skipped_for_want_of_a_gpu_has_failed(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "tests.json"
    assert tests.count_passed(_gtest_report(file, {"One": "COMPLETED"})) == 1
    with pytest.raises(StageFailed, match=r"did not run on the GPU: Cuda\.Two"):
        tests.count_passed(_gtest_report(file, {"One": "COMPLETED", "Two": "SKIPPED"}))
    with pytest.raises(StageFailed, match="no test is called"):
        tests.count_passed(_gtest_report(file, {}))


def test_stages_say_that_nothing_is_built(tmp_path: pathlib.Path) -> None:
    session = Session(tmp_path, tmp_path / "log", 10)
    for stage in STAGES[1:]:
        with pytest.raises((StageFailed, StageSkipped), match=r"not (built|installed)"):
            stage.run(session)


def test_the_package_of_a_build_is_what_python_imports(tmp_path: pathlib.Path) -> None:
    (tmp_path / "_C.cpython-312.so").touch()
    build.make_package(tmp_path)
    session = Session(tmp_path, tmp_path / "log", 60)
    environment = {**build.package_environment(session), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    script = (
        "import importlib.metadata as m, q7x2; print(q7x2.__file__); "
        "print([e.value for e in m.distribution('q7x2').entry_points])"
    )
    said = session.call(sys.executable, "-c", script, env=environment)
    assert str(tmp_path / "python/q7x2") in said
    assert said.count("q7x2._autoload:register") == 2


def test_tables_show_every_codec_and_case() -> None:
    rows: list[dict[str, Any]] = [
        {"codec": codec, "call": call, "share": 0.5}
        for codec in ("int4", "onebit")
        for call in ("encode", "decode")
    ]
    rows.append({"codec": "sumint8", "call": "encode", "share": 0.4})  # decoded otherwise
    table = measure.kernels_table(rows)
    assert "| `onebit` | 0.50 | 0.50 |" in table
    assert "| `sumint8` | 0.40 | - |" in table
    common = {"parameters": 2e6, "ranks": 2, "gpus": 1, "loss": 1.0}
    found = [
        {**common, "case": "q7x2", "seconds": 0.2},
        {**common, "case": "q7x2", "seconds": 0.1},
        {**common, "case": "gloo", "seconds": 0.3},
    ]
    table = measure.training_table("ddp", found, ["gloo: a problem"])
    assert "| q7x2 | 0.1000 | 1.0000 |" in table
    assert "| gloo | 0.3000 | 1.0000 |" in table
    assert "gloo: a problem" in table


def _benchmark(repository: pathlib.Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.speed", *arguments, "--device", "cpu"],
        cwd=repository,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.nightly("measures, for seven seconds of a core")
def test_ranks_are_measured(repository: pathlib.Path) -> None:
    found = _benchmark(repository, "ranks", "--ranks", "2", "--bytes", "65536", "--rounds", "2")
    assert set(found["seconds"]) == {"dense", "int4"}
    assert found["errors"]["dense"] < found["errors"]["int4"] < 0.3


@pytest.mark.nightly("minutes: trains on a stand-in")
@pytest.mark.parametrize(("what", "case"), [("ddp", "q7x2 int4"), ("fsdp", "q7x2")])
def test_a_training_is_measured(repository: pathlib.Path, what: str, case: str) -> None:
    size = ["--layers", "1", "--width", "64", "--batch", "1", "--length", "8", "--steps", "2"]
    found = _benchmark(repository, "training", "--what", what, "--case", case, *size)
    assert (found["what"], found["case"], found["ranks"]) == (what, case, 2)
    assert found["seconds"] > 0
    assert found["loss"] > 0
