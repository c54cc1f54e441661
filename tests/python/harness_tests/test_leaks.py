"""A test that leaves something behind fails itself, and the next test finds nothing of it."""

from __future__ import annotations

import os
import pathlib

import inner_pytest
import pytest

LEAVING = {
    "test_leaves_a_process",
    "test_leaves_a_grandchild",
    "test_leaves_a_child_of_a_rank[2r]",
    "test_leaves_a_file",
    "test_leaves_a_listening_socket",
    "test_a_program_leaves_a_file",
}
CLEAN = 7

# Of a run of pytest in a test. A busy machine takes minutes.
pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((), id="alone"),
        pytest.param(
            ("-n1", "--dist", "loadfile"),
            id="workers",
            marks=pytest.mark.nightly("the same with one more interpreter"),
        ),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root knows who made a file in /dev/shm")
def test_who_leaves_something_fails(arguments: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    run = inner_pytest.run("leaving.py", tmp_path, *arguments, copies=False)
    assert run.failed() == LEAVING
    assert run.results["passed"] == CLEAN
    text = run.end()
    assert ": sleep 600" in run.of("test_leaves_a_process")
    assert ": sleep 600" in run.of("test_leaves_a_grandchild")
    assert ": sleep 600" in run.of("test_leaves_a_child_of_a_rank[2r]")
    assert "file /dev/shm/q7x2-left" in run.of("test_leaves_a_file")
    assert "file /dev/shm/q7x2-left-by-a-program" in run.of("test_a_program_leaves_a_file")
    assert "listens on port" in run.of("test_leaves_a_listening_socket")
    assert "(teardown," in text


@pytest.mark.nightly("seconds, and the others have its parts")
def test_a_module_that_leaves_a_process_fails_its_last_test(tmp_path: pathlib.Path) -> None:
    run = inner_pytest.run("leaving_module.py", tmp_path, copies=False)
    assert run.failed() == {"test_last"}
    assert "a fixture of this module left behind" in run.of("test_last")
