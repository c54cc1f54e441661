"""Short forms of Python's stacks, as ``traceback`` and ``faulthandler`` print them."""

from __future__ import annotations

import pathlib
import re

_FRAME = re.compile(r'File "([^"]+)", line (\d+),? in (\S+)')
_THREAD = re.compile(r"^(?:Current thread|Thread) .*\(most recent call first\):$")

# Frames of the harness and of what starts threads and processes are in every stack.
_FRAMEWORK = ("rank_process.py", "connection.py", "threading.py", "forkserver.py", "process.py")
_FRAMEWORK += ("popen_forkserver.py", "spawn.py", "<string>", "python.py", "callers.py")


def thread_places(text: str, most: int = 8) -> list[str]:
    """Return one line for each thread of a dump by ``faulthandler``, the signalled one first.

    A line is ``values.py:31 meet < test_p2p.py:20 test_send``, the innermost frame first. Threads
    with no frame of their own are left out.
    """
    threads: list[tuple[bool, list[str]]] = []
    for line in text.splitlines():
        if "rank_witness.py" in line:
            threads[-1][1].clear()
        elif _THREAD.match(line):
            threads.append((line.startswith("Thread"), []))
        elif threads and (frame := _FRAME.search(line)):
            threads[-1][1].append(_place(frame))
    lines = [_chain(frames, most) for _, frames in sorted(threads, key=lambda thread: thread[0])]
    return [line for line in lines if line]


def raised_at(trace: str, most: int = 8) -> str:
    """Return the places of a traceback on one line, the innermost frame first."""
    last = trace.rpartition("Traceback (most recent call last):")[2]
    frames = [_place(frame) for frame in _FRAME.finditer(last)]
    return _chain(frames[::-1], most)


def error_lines(trace: str) -> list[str]:
    """Return the exception at the end of a traceback: its type and its text, without frames."""
    lines = trace.rstrip().splitlines()
    begin = len(lines)
    while begin > 0 and lines[begin - 1] and not lines[begin - 1].startswith("  "):
        begin -= 1
    return lines[begin:]


def _place(frame: re.Match[str]) -> str:
    name = pathlib.PurePath(frame[1]).name
    return "" if name in _FRAMEWORK else f"{name}:{frame[2]} {frame[3]}"


def _chain(frames: list[str], most: int) -> str:
    own = [frame for frame in frames if frame]
    return " < ".join(own[:most]) + (" < ..." if len(own) > most else "")
