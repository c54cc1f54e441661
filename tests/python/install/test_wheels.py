"""Wheels for several versions of torch, and what a user is told whose torch does not fit."""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys
import zipfile

import interpreters
import pytest

VERSION = importlib.metadata.version("q7x2")
OTHER_TORCH = """
import sys, torch
torch.__version__ = "9.99.1+cpu"
from q7x2.cli import main
sys.exit(main(["info"]))
"""


def python(*arguments: str, program: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=240, check=False
    )


def test_another_torch_gets_the_commands_that_help() -> None:
    done = python("-c", OTHER_TORCH, program=interpreters.python())
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    said = " ".join(done.stdout.split())  # the report breaks lines
    assert f"q7x2 {VERSION} was compiled for torch 2." in said
    assert "but this is torch 9.99.1+cpu" in said
    assert f"--find-links WHEELS 'q7x2=={VERSION}+torch9.99'" in said
    assert "pip install --no-build-isolation --force-reinstall --no-deps ." in said


def make_wheel(folder: pathlib.Path, name: str, version: str, requirement: str) -> pathlib.Path:
    """A wheel with one module, ``<name>_wheel_test``, and the given requirement."""
    folder.mkdir()
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirement}\n"
    files = {
        f"{name}_wheel_test.py": "answer = 42\n",
        f"{info}/METADATA": about,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(file, text)
    return wheel


@pytest.fixture
def index(repository: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with a wheel for torch 2.11 and one for torch 2.13, and its page."""
    tool = str(repository / "cmake" / "wheel_index.py")
    folder = tmp_path / "dist"
    for minor in ("2.11", "2.13"):
        requirement = f"Requires-Dist: torch=={minor}.*"
        wheel = make_wheel(tmp_path / minor, "q7x2", "0.1.0", requirement)
        done = python(tool, "add", str(wheel), str(folder))
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().endswith(f"q7x2-0.1.0+torch{minor}-py3-none-any.whl")
    assert python(tool, "page", str(folder)).returncode == 0
    return folder


def test_pip_installs_the_wheel_of_a_version_by_the_page(
    index: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    target = tmp_path / "target"
    links = ("--find-links", str(index / "index.html"))
    options = ("--no-index", "--no-deps", "--target", str(target), *links)
    done = python("-m", "pip", "install", *options, "q7x2==0.1.0+torch2.11")
    assert done.returncode == 0, done.stderr
    assert (target / "q7x2_wheel_test.py").read_text() == "answer = 42\n"
    assert (target / "q7x2-0.1.0+torch2.11.dist-info" / "METADATA").is_file()


def test_pip_takes_the_wheel_that_fits_torch(index: pathlib.Path, tmp_path: pathlib.Path) -> None:
    torch = make_wheel(tmp_path / "torch", "torch", "2.11.0", "")
    links = ("--find-links", str(index), "--find-links", str(torch.parent))
    options = ("--no-index", "--dry-run", "--ignore-installed")
    done = python("-m", "pip", "install", *options, *links, "q7x2", "torch==2.11.*")
    assert done.returncode == 0, done.stderr
    assert "Would install q7x2-0.1.0+torch2.11 torch-2.11.0" in done.stdout


def test_a_wheel_that_is_bound_to_no_torch_is_refused(
    repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    wheel = make_wheel(tmp_path / "loose", "q7x2", "0.1.0", "Requires-Dist: torch>=2.11")
    tool = str(repository / "cmake" / "wheel_index.py")
    done = python(tool, "add", str(wheel), str(tmp_path / "dist"))
    assert done.returncode == 1
    assert "does not require one minor version of torch" in done.stderr
