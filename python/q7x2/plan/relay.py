"""``q7x2 serve --relay``: joins connections of processes that cannot reach each other.

Two processes behind NAT both connect to the relay, which passes on what comes. It is encrypted, and
the relay has no key. ``csrc/transport/stream/relay_hello.h`` describes what they say to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

Say = Callable[[str], None]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_HELLO = struct.Struct("8s c 7x 16s 16s")
_MAGIC = b"q7x2rly1"
_REGISTERED = bytes(16)
HELLO_S = 10.0  # for what a process must say first
ANSWER_S = 10.0  # for the process that is called
BUFFER = 256 << 10  # bytes in each direction of a connection
_MOST_STRANGERS = 256  # connections that have said nothing yet


@dataclass
class _Job:
    """What the processes with one secret use."""

    connections: int = 0
    has_too_many: bool = False
    free_at: float = 0.0
    """When the job may send again, with a limited rate."""
    lines: dict[bytes, asyncio.StreamWriter] = field(default_factory=dict)
    """To the processes that wait for calls, by their tokens."""


class Relay:
    """Listens at one port, for all jobs."""

    def __init__(
        self, say: Say, *, most_connections: int, rate: float | None, job: bytes | None
    ) -> None:
        """
        Args:
            say: Told what an operator should know.
            most_connections: How many each job may have at once; a call takes two.
            rate: Bytes per second of each job, both directions together; None for no limit.
            job: The only job that may use the relay; None for any.
        """
        self._say = say
        self._most = most_connections
        self._rate = rate
        self._only = job
        self._jobs: defaultdict[bytes, _Job] = defaultdict(_Job)
        self._calls: dict[bytes, asyncio.Future[Stream]] = {}
        self._strangers = 0

    async def serve(self, sockets: list[socket.socket]) -> None:
        """Until it is cancelled."""
        servers = [
            await asyncio.start_server(self._take, sock=each, limit=BUFFER) for each in sockets
        ]
        self._say(f"relays at {' and '.join(_place(each) for each in sockets)}")
        try:
            await asyncio.Event().wait()
        finally:
            for server in servers:
                server.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = await self._hear(reader)
            if hello is not None:
                await self._obey(*hello, (reader, writer))
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            pass  # that connection is over
        finally:
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes, bytes] | None:
        if self._strangers >= _MOST_STRANGERS:
            return None
        self._strangers += 1
        try:
            said = await asyncio.wait_for(reader.readexactly(_HELLO.size), HELLO_S)
        finally:
            self._strangers -= 1
        magic, kind, job, name = _HELLO.unpack(said)
        is_welcome = magic == _MAGIC and (self._only is None or job == self._only)
        return (kind, job, name) if is_welcome else None

    async def _obey(self, kind: bytes, name: bytes, token: bytes, stream: Stream) -> None:
        job = self._jobs[name]
        if job.connections >= self._most:
            if not job.has_too_many:
                self._say(f"a job has {self._most} connections and gets no more")
            job.has_too_many = True
            return
        job.connections += 1
        try:
            if kind == b"L":
                await self._hold(job, token, stream)
            elif kind == b"C":
                await self._call(job, token, stream)
            elif kind == b"A":
                await self._accept(token, stream)
        finally:
            job.connections -= 1
            if job.connections == 0:
                del self._jobs[name]

    async def _hold(self, job: _Job, token: bytes, stream: Stream) -> None:
        """The line of a process that waits for calls; the newest counts."""
        reader, writer = stream
        job.lines[token] = writer
        try:
            writer.write(_REGISTERED)
            await reader.read(1)  # it says nothing more: this is its end
        finally:
            if job.lines.get(token) is writer:
                del job.lines[token]

    async def _call(self, job: _Job, token: bytes, stream: Stream) -> None:
        number = secrets.token_bytes(16)
        answered: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self._calls[number] = answered
        try:
            line = await asyncio.wait_for(_found(job, token), ANSWER_S)
            line.write(number)
            other = await asyncio.wait_for(answered, ANSWER_S)
        finally:
            del self._calls[number]
        try:
            await self._join(job, stream, other)
        finally:
            other[1].close()

    async def _accept(self, number: bytes, stream: Stream) -> None:
        answered = self._calls.get(number)
        if answered is None or answered.done():
            return
        answered.set_result(stream)
        await stream[1].wait_closed()

    async def _join(self, job: _Job, one: Stream, other: Stream) -> None:
        """Passes on both ways until one end is over, and then no more."""
        ways = [
            asyncio.ensure_future(self._pass_on(job, one[0], other[1])),
            asyncio.ensure_future(self._pass_on(job, other[0], one[1])),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            ends = await asyncio.gather(*ways, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, OSError):
                raise end

    async def _pass_on(
        self, job: _Job, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(BUFFER):
            if self._rate is not None:
                await self._wait_for_turn(job, len(data) / self._rate)
            writer.write(data)
            await writer.drain()

    async def _wait_for_turn(self, job: _Job, seconds: float) -> None:
        now = time.monotonic()
        job.free_at = max(job.free_at, now) + seconds
        await asyncio.sleep(job.free_at - seconds - now)


async def _found(job: _Job, token: bytes) -> asyncio.StreamWriter:
    """The line of a process, which may be about to come."""
    while token not in job.lines:
        await asyncio.sleep(0.05)
    return job.lines[token]


def _place(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at the host's addresses; "" stands for all addresses of this machine.

    Raises:
        ValueError: The host has no address here, or the port is in use.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in found:
            with contextlib.suppress(_Unsupported):
                sockets.append(_bound(family, address))
        if not sockets:
            raise OSError("it has no address")
    except OSError as error:
        for each in sockets:
            each.close()
        raise ValueError(
            f"cannot listen at {host or 'all addresses'}, port {port}: {error}"
        ) from None
    return sockets


class _Unsupported(Exception):
    """This machine has no addresses of that family."""


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    try:
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _Unsupported from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.listen(1024)
    except BaseException:
        bound.close()
        raise
    return bound


def run(options: argparse.Namespace, say: Say) -> int:
    """What ``q7x2 serve --relay`` does; ends on Ctrl-C and SIGTERM."""
    store = _store(options.store) if options.store is not None else None
    if store is not None:
        say(f"holds a store at port {options.store}")
    from q7x2._core.extension import load

    job = load().relay_job()
    if job is None:
        say("serves everybody who can reach it: set Q7X2_SECRET to serve one job alone")
    relay = Relay(say, most_connections=options.most_connections, rate=options.rate, job=job)
    sockets = listen(*options.relay)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_until_told(relay, sockets))
    say("ends: was told to stop")
    return 0


async def _until_told(relay: Relay, sockets: list[socket.socket]) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await relay.serve(sockets)


def _store(port: int) -> object:
    """A store for the job, so that no rank's machine needs to be reachable."""
    from torch._C._distributed_c10d import TCPStore

    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
