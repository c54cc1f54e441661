"""Tests that leave something behind, each followed by one that does not; see ``test_leaks.py``."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import shared_memory

import harness
import pytest
import worker_processes

KEPT: list[socket.socket] = []


def start_sleeping() -> None:
    subprocess.Popen(["sleep", "600"])


def is_running(command: str) -> bool:
    """Whether this process has such a child."""
    children = worker_processes.children(os.getpid())
    return any(command in worker_processes.command_line(pid) for pid in children)


def test_leaves_a_process() -> None:
    start_sleeping()


def test_after_a_process() -> None:
    assert not is_running("sleep 600")


def test_leaves_a_grandchild() -> None:
    subprocess.run(["sh", "-c", "sleep 600 > /dev/null 2>&1 &"], check=True)


@pytest.mark.ranks(2, init="none")
def test_leaves_a_child_of_a_rank() -> None:
    if harness.current_rank() == 0:
        start_sleeping()


def test_leaves_a_file() -> None:
    pathlib.Path("/dev/shm/q7x2-left").write_bytes(b"left")


def test_after_a_file() -> None:
    assert not pathlib.Path("/dev/shm/q7x2-left").exists()


def test_a_program_leaves_a_file() -> None:
    text = "open('/dev/shm/q7x2-left-by-a-program', 'w'); import time; time.sleep(0.1)"
    subprocess.run([sys.executable, "-c", text], check=True)


def test_leaves_a_listening_socket() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    KEPT.append(listener)


def test_after_a_listening_socket() -> None:
    # The object is still there, but nobody can connect.
    with pytest.raises(OSError, match="non-socket"):
        KEPT[0].getsockname()


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    # It starts a program in the middle of each test.
    text = "while :; do sleep 0.05 & wait; done"
    with subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "sh", "-c", text]) as process:
        yield process.pid
        process.kill()


def test_uses_a_server_of_the_module(server: int) -> None:
    before = worker_processes.children(server)
    harness.wait_until(lambda: worker_processes.children(server) not in (before, set()))


def test_shares_memory_and_cleans_up() -> None:
    memory = shared_memory.SharedMemory(create=True, size=100)
    memory.close()
    memory.unlink()


@pytest.mark.ranks(2, init="none")
def test_standing_ranks_may_stay() -> None:
    pass


def test_ends_what_it_starts(new_pool: type[harness.RankPool]) -> None:
    new_pool(2)
    subprocess.run(["true"], check=True)
