"""The relay of `q7x2 serve --relay`: who is joined with whom, and limits of strangers and jobs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from q7x2.plan import relay

JOB, OTHER_JOB = b"j" * 16, b"k" * 16
TOKEN = b"t" * 16
REGISTERED = bytes(16)
PATIENCE_S = 20.0


class Running:
    """A relay at a port of the loopback."""

    def __init__(self, **options: int | float | bytes | None) -> None:
        self.said: list[str] = []
        given = {"most_connections": 100, "rate": None, "job": None, **options}
        self._relay = relay.Relay(self.said.append, **given)  # type: ignore[arg-type]
        self._sockets = relay.listen("127.0.0.1", 0)
        self.port: int = self._sockets[0].getsockname()[1]

    async def __aenter__(self) -> Running:
        self._task = asyncio.ensure_future(self._relay.serve(self._sockets))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def says(self, kind: bytes, name: bytes, job: bytes = JOB) -> relay.Stream:
        return await self.begins(b"q7x2rly1" + kind + bytes(7) + job + name)

    async def begins(self, words: bytes) -> relay.Stream:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(words)
        return reader, writer

    async def listens(self, token: bytes = TOKEN, job: bytes = JOB) -> relay.Stream:
        line = await self.says(b"L", token, job)
        assert await read(line, 16) == REGISTERED
        return line


async def read(stream: relay.Stream, count: int) -> bytes:
    """That many bytes, or what came before the end."""
    try:
        return await asyncio.wait_for(stream[0].readexactly(count), PATIENCE_S)
    except asyncio.IncompleteReadError as error:
        return error.partial
    except ConnectionResetError:
        return b""


async def joined(running: Running, line: relay.Stream) -> tuple[relay.Stream, relay.Stream]:
    caller = await running.says(b"C", TOKEN)
    return caller, await running.says(b"A", await read(line, 16))


def test_a_call_is_joined_with_its_answer() -> None:
    async def run() -> None:
        async with Running() as running:
            line = await running.listens()
            pairs = [await joined(running, line) for _ in range(3)]
            for number, (caller, answer) in enumerate(pairs):
                there, back = bytes([number]) * 300_000, bytes([100 + number]) * 1000
                caller[1].write(there)
                answer[1].write(back)
                assert await read(answer, len(there)) == there
                assert await read(caller, len(back)) == back
            pairs[0][0][1].close()
            assert await read(pairs[0][1], 1) == b"", "the end is passed on"
            pairs[1][0][1].write(b"x")
            assert await read(pairs[1][1], 1) == b"x", "other calls go on"

    asyncio.run(run())


def test_what_was_said_before_the_answer_waits() -> None:
    async def run() -> None:
        async with Running() as running:
            caller = await running.begins(b"q7x2rly1C" + bytes(7) + JOB + TOKEN + b"early")
            line = await running.listens()  # it comes after its caller
            answer = await running.says(b"A", await read(line, 16))
            assert await read(answer, 5) == b"early"
            caller[1].close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n" + b"." * 40,
        b"q7x2rly1" + b"Z" + bytes(7) + JOB + TOKEN,
        b"q7x2rly1" + b"A" + bytes(7) + JOB + TOKEN,
        b"q7x2rly1" + b"L" + bytes(7) + OTHER_JOB + TOKEN,
    ],
    ids=["another protocol", "an unknown word", "an answer to no call", "another job"],
)
def test_what_it_does_not_serve_is_ended(words: bytes) -> None:
    async def run() -> None:
        async with Running(job=JOB) as running:
            assert await read(await running.begins(words), 1) == b""
            await running.listens()  # it serves on

    asyncio.run(run())


def test_a_job_cannot_call_processes_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "ANSWER_S", 0.2)

    async def run() -> None:
        async with Running() as running:
            line = await running.listens(job=OTHER_JOB)
            assert await read(await running.says(b"C", TOKEN), 1) == b""
            own = await running.says(b"C", TOKEN, OTHER_JOB)
            assert len(await read(line, 16)) == 16, "the first word on the line is of this call"
            own[1].close()

    asyncio.run(run())


def test_a_job_has_a_limit_of_connections() -> None:
    async def run() -> None:
        async with Running(most_connections=2) as running:
            lines = [await running.listens(bytes(15) + bytes([number])) for number in range(2)]
            for _ in range(3):
                assert await read(await running.says(b"L", b"v" * 16), 1) == b""
            await running.listens(job=OTHER_JOB)  # another job has its own
            assert running.said[1:] == ["a job has 2 connections and gets no more"]
            lines.pop()[1].close()
            while await read(again := await running.says(b"L", b"v" * 16), 16) != REGISTERED:
                again[1].close()

    asyncio.run(run())


def test_a_job_has_a_limit_of_bytes_in_a_second() -> None:
    """Both connections together have the rate, so twice the bytes of one take twice the time."""

    async def run() -> None:
        count, rate = 400_000, 1_000_000
        async with Running(rate=rate) as running:
            line = await running.listens()
            pairs = [await joined(running, line) for _ in range(2)]
            began = time.monotonic()
            for caller, _ in pairs:
                caller[1].write(bytes(count))
            await asyncio.gather(*(read(answer, count) for _, answer in pairs))
            # The last bytes that are read at once go as soon as those before them were paid for.
            assert time.monotonic() - began > (2 * count - 2 * relay.BUFFER) / rate

    asyncio.run(run())


def test_strangers_that_say_nothing_do_not_keep_others_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "HELLO_S", 0.2)

    async def run() -> None:
        async with Running() as running:
            silent = [await running.begins(b"") for _ in range(20)]
            await running.listens()
            for each in silent:
                assert await read(each, 1) == b""

    asyncio.run(run())


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_wrong_arguments_are_errors(taken: int) -> None:
    for words, text in (
        (["--store", "29500"], "--store: expected --relay, too"),
        (["--relay", "x"], "expected [HOST:]PORT, not 'x'"),
        (["--relay", "0"], "expected [HOST:]PORT, not '0'"),
        (["--relay", f"127.0.0.1:{taken}"], f"cannot listen at 127.0.0.1, port {taken}"),
        (["--relay", "no such host:1"], "cannot listen at no such host, port 1"),
        (["--relay", "1", "--most-connections", "1"], "--most-connections"),
        (["--relay", "1", "--rate", "fast"], "--rate"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "q7x2", "serve", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ended.returncode in (1, 2), words
        assert text in ended.stderr, (words, ended.stderr)
        assert "Traceback" not in ended.stderr
