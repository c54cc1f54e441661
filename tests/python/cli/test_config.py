"""``Q7X2_CONFIG``, a file that holds the environment variables, and ``q7x2 config``."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from q7x2._core import config_file

GROUP = """
import os
import torch, torch.distributed as dist
dist.init_process_group("q7x2", store=dist.HashStore(), rank=0, world_size=1)
print(os.environ["Q7X2_ALGO"], os.environ["Q7X2_REFINE"], os.environ["Q7X2_SILENCE"])
print("made")
dist.destroy_process_group()
"""


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "q7x2.toml"


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_entries_become_variables_unless_these_are_set(path: pathlib.Path) -> None:
    path.write_text('algo = "ring"\nrefine = false\nsilence = 7\n')
    ended = run("-c", GROUP, Q7X2_CONFIG=str(path), Q7X2_SILENCE="5")
    assert ended.stdout.split() == ["ring", "0", "5", "made"], ended.stderr


def test_a_wrong_value_is_an_error_like_that_of_the_variable(path: pathlib.Path) -> None:
    path.write_text("silence = -1\n")
    ended = run("-c", GROUP, Q7X2_CONFIG=str(path))
    assert ended.returncode != 0
    assert "Q7X2_SILENCE" in ended.stderr


WRONG = {
    "silense = 5": "no entry 'silense'; did you mean 'silence'",
    "Q7X2_SILENCE = 5": "no entry 'Q7X2_SILENCE'; did you mean 'silence'",
    "config = 'other.toml'": "no entry 'config'",
    "zzz = 1": "expected one of advertise, algo, attach",
    "silence = [5]": "silence: expected a text, a number, true or false",
    "algo = ''": "algo: expected a text",
    "silence = ": "expected TOML",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_files(text: str, path: pathlib.Path) -> None:
    path.write_text(text)
    with pytest.raises(ValueError, match=WRONG[text]):
        config_file.read(path)


def test_a_file_that_is_not_there_is_named() -> None:
    ended = run("-c", GROUP, Q7X2_CONFIG="/nowhere/q7x2.toml")
    assert "Q7X2_CONFIG: cannot read '/nowhere/q7x2.toml': No such file" in ended.stderr


def test_the_command_shows_and_checks(path: pathlib.Path) -> None:
    path.write_text('algo = "ring"\nsecret = "a secret of the job"\n')
    ended = run("-m", "q7x2", "config", str(path), "--check", Q7X2_SILENCE="3", Q7X2_SILENSE="3")
    assert ended.returncode == 0, ended.stderr
    assert f"Q7X2_ALGO=ring  # {path}" in ended.stdout
    assert "Q7X2_SILENCE=3  # environment" in ended.stdout
    assert "a secret" not in ended.stdout
    assert "Q7X2_SILENSE has no effect: did you mean Q7X2_SILENCE?" in ended.stderr
    assert "a group of one rank works" in ended.stdout
    path.write_text('algo = "rung"\n')
    ended = run("-m", "q7x2", "config", "--check", Q7X2_CONFIG=str(path))
    assert ended.returncode == 1
    assert "did you mean 'ring'" in ended.stderr
