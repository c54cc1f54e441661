"""Child processes that end with this one, and all that they have started with them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

# What is interrupted gets this long to say where it was.
GRACE_S = 20.0


def end_on_sigterm() -> None:
    """SIGTERM raises SystemExit, so that what this process has started is ended."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@contextlib.contextmanager
def session(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own. At the end of the block the session ends.

    If the block ends by an exception, such as KeyboardInterrupt, the session is interrupted first.
    """
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    except BaseException:
        _signal(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        raise
    finally:
        _signal(process.pid, signal.SIGKILL)
        process.wait()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
