"""Packets between the sites of a lab with distance, and what became of them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import astuple

from harness import wait_until

from tests.lab import Counts, WideLab

PORT = 20000
HEADERS = 28  # bytes of IPv4 and UDP

# Prints the numbers of the packets that came, once it is told that there are no more.
RECEIVER = """
import json, selectors, socket, sys
address, port = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as inbox:
    inbox.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    inbox.bind((address, port))
    print("ready", flush=True)
    came, told = [], selectors.DefaultSelector()
    told.register(sys.stdin, selectors.EVENT_READ)
    told.register(inbox, selectors.EVENT_READ)
    is_over = False
    while not is_over:
        is_over = any(key.fileobj is sys.stdin for key, _ in told.select())
        try:
            while True:
                came.append(int(inbox.recv(2048, socket.MSG_DONTWAIT)[:8]))
        except BlockingIOError:
            pass
    print(json.dumps(came))
"""
SENDER = """
import socket, sys, time
address, port, count, size, flows = sys.argv[1], *map(int, sys.argv[2:6])
pause = float(sys.argv[6])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
outboxes = [socket.socket(family, socket.SOCK_DGRAM) for _ in range(flows)]
for number in range(count):
    outboxes[number % flows].sendto(f"{number:8}".ljust(size).encode(), (address, port))
    if pause:
        time.sleep(pause)
"""


def python(text: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]


def is_empty(line: Counts) -> bool:
    ended = line.delivered + line.lost + line.cut_off + line.overflowed + line.refused
    return line.entered + line.duplicated == ended


def send(
    lab: WideLab, count: int, *, size: int = 100, flows: int = 1, pause: float = 0
) -> tuple[list[int], Counts]:
    """Sends packets from the last host to the first one.

    Returns the numbers that arrived, in the order of arrival, and what the wire counted meanwhile.
    """
    last = lab.topology.hosts - 1
    way = (lab.topology.site_of(last), 0)
    address = lab.topology.address(0)
    receiver = subprocess.Popen(
        [*lab.enter(0), *python(RECEIVER, address, PORT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert receiver.stdout is not None
    try:
        assert receiver.stdout.readline() == "ready\n"
        before = lab.line.counts()[way]
        sender = python(SENDER, address, PORT, count, size - HEADERS, flows, pause)
        subprocess.run([*lab.enter(last), *sender], check=True)
        wait_until(lambda: is_empty(lab.line.counts()[way]))
        came = json.loads(receiver.communicate("\n", timeout=30)[0])
    finally:
        receiver.kill()
        receiver.wait()
    after = lab.line.counts()[way]
    return came, Counts(*(b - a for a, b in zip(astuple(before), astuple(after), strict=True)))
