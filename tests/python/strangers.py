"""What somebody does who reaches a port of a rank, and has no secret: for the adversary's tests.

Run as a program, ``strangers.py ATTACK ADDRESS PORTS ...`` does one thing to ports of a host and
prints what came of it. It needs nothing but the standard library, so any user can run it in any
network namespace.

The messages are those of UCX over TCP (``src/uct/tcp`` of UCX 1.22), which believes its peers:
``put`` writes to any address of the process, and a tagged message is matched by its tag alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence

_PATIENCE_S = 3.0
_MAGIC = 0xCAFEBABE12345678
_CONNECTION_MESSAGE, _PUT = 32, 33
_EAGER_TAGGED = 2
_CONNECTION_REQUEST = 1


def _message(kind: int, body: bytes) -> bytes:
    return struct.pack("<BI", kind, len(body)) + body


def greeting(own: tuple[str, int], number: int = 1) -> bytes:
    """How a UCX peer begins: it wants to send."""
    address = struct.pack("<H", socket.AF_INET) + struct.pack(">H", own[1])
    address += socket.inet_aton(own[0]) + bytes(8)
    request = struct.pack("<IBQ", _CONNECTION_REQUEST, 0, number) + address
    return struct.pack("<Q", _MAGIC) + _message(_CONNECTION_MESSAGE, request)


def put(address: int, data: bytes) -> bytes:
    """Write ``data`` at ``address`` of the process."""
    return _message(_PUT, struct.pack("<QQI", address, len(data), 1)) + data


def tagged(tag: int, data: bytes) -> bytes:
    """A message for the receive of this tag."""
    return _message(_EAGER_TAGGED, struct.pack("<Q", tag) + data)


@contextlib.contextmanager
def connected(host: str, port: int, timeout: float = _PATIENCE_S) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=timeout) as line:
        yield line


def sent(host: str, port: int, *parts: bytes) -> str:
    """What came of it: ``refused``, ``silent``, or ``taken``: the bytes were accepted."""
    try:
        with connected(host, port) as line:
            line.sendall(greeting(line.getsockname()[:2]) + b"".join(parts))
            line.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                line.recv(1 << 16)  # until the other end has read what was sent
    except TimeoutError:
        return "silent"
    except OSError:
        return "refused"
    return "taken"


def write(host: str, ports: Sequence[int], address: int) -> dict[int, str]:
    return {port: sent(host, port, put(address, b"\xa5" * 64)) for port in ports}


def guess(host: str, ports: Sequence[int], tags: Sequence[int]) -> dict[int, str]:
    return {port: sent(host, port, *(tagged(tag, b"\xa5" * 64) for tag in tags)) for port in ports}


def inject(host: str, ports: Sequence[int]) -> dict[int, str]:
    """Random bytes, with and without a greeting."""
    said = {}
    for port in ports:
        said[port] = sent(host, port, os.urandom(4096))
        with contextlib.suppress(OSError), connected(host, port) as line:
            line.sendall(os.urandom(4096))
    return said


def replay(host: str, ports: Sequence[int], recorded: bytes) -> dict[int, str]:
    """What was recorded of another connection; ``answered`` if it brought an answer."""
    said = {}
    for port in ports:
        try:
            with connected(host, port) as line:
                line.sendall(recorded)
                said[port] = "answered" if line.recv(1) else "dropped"
        except TimeoutError:
            said[port] = "silent"
        except OSError:
            said[port] = "dropped"
    return said


def hold(host: str, ports: Sequence[int], count: int) -> dict[int, int]:
    """How many of ``count`` connections are made; they send nothing until the program is killed."""
    lines: list[socket.socket] = []
    made = dict.fromkeys(ports, 0)
    for port in ports:
        for _ in range(count):
            line = socket.socket()
            line.setblocking(False)
            line.connect_ex((host, port))
            lines.append(line)
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        time.sleep(0.1)
    for i, line in enumerate(lines):
        with contextlib.suppress(OSError):
            line.getpeername()
            made[ports[i // count]] += 1
    return made


def flood(host: str, ports: Sequence[int], seconds: float) -> int:
    """Connects to the ports again and again, without a pause; how often."""
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        for port in ports:
            line = socket.socket()
            line.setblocking(False)
            line.connect_ex((host, port))
            line.close()
            count += 1
    return count


def listening() -> list[tuple[str, int]]:
    """Addresses and ports at which this process listens, over IPv4."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = pathlib.Path(f"/proc/self/fd/{name}").readlink().name
            inodes.add(target.removeprefix("socket:[").rstrip("]"))
    found = []
    for line in pathlib.Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            address, port = words[1].split(":")
            found.append((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
    return found


def main(attack: str, host: str, ports: str, *arguments: str) -> None:
    at = [int(each) for each in ports.split(",") if each]
    said: object
    if attack == "write":
        said = write(host, at, int(arguments[0]))
    elif attack == "guess":
        said = guess(host, at, [int(each, 16) for each in arguments])
    elif attack == "inject":
        said = inject(host, at)
    elif attack == "replay":
        said = replay(host, at, bytes.fromhex(arguments[0]))
    elif attack == "hold":
        said = hold(host, at, int(arguments[0]))
    else:
        said = flood(host, at, float(arguments[0]))
    print(json.dumps(said), flush=True)
    if attack == "hold":
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
