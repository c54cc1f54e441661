"""What each Python process of a measured run does first.

coverage.py itself starts by ``COVERAGE_PROCESS_START``. This file makes the measured package the
one that is imported, and asks ranks that the harness would kill to write their counters first.
"""

import contextlib
import os
import select
import signal
import sys

# The editable install would find the usual package first.
sys.meta_path = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]

LEAVE = signal.SIGRTMAX
PATIENCE = 1.0  # seconds for a rank to write its counters

_kill = os.kill


def _leave(number: int, frame: object) -> None:
    os._exit(0)  # coverage.py and exit.cpp write what they have


def _kill_later(pid: int, number: int) -> None:
    """``os.kill``; the harness's ``RankPool.close`` first lets a rank write its counters.

    A test that kills a rank in the middle of a call kills it at once.
    """
    if number == signal.SIGKILL and sys._getframe(2).f_code.co_name == "close":
        with contextlib.suppress(OSError):
            end = os.pidfd_open(pid)
            _kill(pid, LEAVE)
            has_ended, _, _ = select.select([end], [], [], PATIENCE)
            os.close(end)
            if has_ended:
                return
    _kill(pid, number)


signal.signal(LEAVE, _leave)
os.kill = _kill_later
