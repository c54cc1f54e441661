"""A few of PyTorch's own tests, aimed at the backend; docs/testing_special.md has the rest."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import harness
import interpreters
import pytest


@pytest.mark.timeout(600)
def test_chosen_tests_of_pytorch(backend: str, tmp_path) -> None:
    suite = str(harness.TESTS / "upstream" / "__main__.py")
    command = [interpreters.python(), suite, "--backend", backend, "--quick"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | interpreters.environment(),
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=580)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    summary = re.search(r"all world sizes: (\d+) of (\d+) passed, (\d+) skipped", output)
    assert summary is not None, output
    passed, ran, skipped = (int(n) for n in summary.groups())
    assert passed == ran, output
    assert passed >= 20, output
    assert skipped <= 2, output
