"""``q7x2 blame`` without a process of its own."""

from __future__ import annotations

import contextlib
import io
import pathlib
import subprocess

from q7x2 import cli


def blame(directory: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run ``q7x2 blame`` in this process, which takes no time to import torch."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(["blame", str(directory)])
    return subprocess.CompletedProcess([], status, out.getvalue(), err.getvalue())
