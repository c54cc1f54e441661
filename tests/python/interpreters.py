"""Interpreters that have imported torch already: a program starts in milliseconds, not seconds.

A test that does not ask how an interpreter starts uses ``python()`` instead of
``sys.executable``. A script that calls ``python``, ``torchrun`` or ``q7x2`` gets the variables of
``environment()``; the workers of its ``torchrun`` are copies, too. At night all of them are new
interpreters.
"""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import warm_program

TESTS = pathlib.Path(__file__).resolve().parent
NAMES = ("python", "python3", "torchrun", "q7x2")


class Zygote:
    """The one process that forks those of programs (see ``zygote.py``)."""

    _instance: Zygote | None = None

    def __init__(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="q7x2-programs-"))
        self._process = subprocess.Popen(
            [sys.executable, str(TESTS / "zygote.py"), str(self.folder / "zygote")],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
        text = pathlib.Path(warm_program.__file__).read_text()
        for name in NAMES:
            program = self.folder / name
            program.write_text(f"#!{sys.executable} -IS\n{text}")
            program.chmod(0o700)
        self.connect().close()  # it listens

    @classmethod
    def get(cls) -> Zygote:
        if cls._instance is None:
            cls._instance = cls()
            atexit.register(cls._instance._stop)
        return cls._instance

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        end = time.monotonic() + 120
        while True:
            try:
                connection.connect(str(self.folder / "zygote"))
                return connection
            except (FileNotFoundError, ConnectionRefusedError):
                code = self._process.poll()
                assert code is None, f"the zygote has ended with {code}"
                assert time.monotonic() < end, "the zygote does not listen"
                time.sleep(0.01)

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Copy:
    """A copy of the zygote that runs a program."""

    def __init__(
        self, args: Sequence[str], env: Mapping[str, str], cwd: str, streams: Sequence[int]
    ) -> None:
        """``streams``: descriptors of its standard input, output and errors."""
        self._connection = Zygote.get().connect()
        request = {"args": list(args), "env": dict(env), "cwd": cwd, "exact": True}
        text = memoryview(json.dumps(request).encode() + b"\n")
        sent = socket.send_fds(self._connection, [text], list(streams))
        self._connection.sendall(text[sent:])
        self._answers = self._connection.makefile()
        self.pid: int = self._answer()["pid"]

    def poll(self) -> int | None:
        """The exit code, or None; until this is called, a process that ended is a zombie."""
        self._connection.sendall(b'{"ask": "poll"}\n')
        status: int | None = self._answer()["status"]
        return status

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._answers.readline())
        return answer


def python() -> str:
    """The path of a program that takes the arguments of ``sys.executable``."""
    if "Q7X2_TEST_NIGHTLY" in os.environ:
        return sys.executable
    return str(Zygote.get().folder / "python")


def environment() -> dict[str, str]:
    """Variables with which ``python``, ``torchrun`` and ``q7x2`` are copies, or at night those of
    this environment."""
    folders = [str(pathlib.Path(python()).parent), str(pathlib.Path(sys.executable).parent)]
    path = os.pathsep.join([*folders, os.environ["PATH"]])
    return {"PATH": path, "PYTHON_EXEC": python()}
