"""What can be done to the network of virtual hosts: silence, loss, a slow link, resets, garbage."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import sys
import time

from tests.faults.site import RATE, STORE_PORT, Site
from tests.lab.lab import Lab
from tests.lab.namespaces import call

# Bytes of a bucket and of the queue behind it, as of the lab's own links.
_BURST = 131072
_QUEUE = 2 * _BURST + 2_500_000

# The first bytes that UCX's tcp transport expects of a new connection.
_UCX_MAGIC = 0xCAFEBABE12345678


def _lab(site: Site) -> Lab:
    if site.lab is None:
        raise ValueError("links belong to virtual hosts; this site is one host")
    return site.lab


def silence(site: Site, host: int) -> float:
    """Cuts the host's cable at the switch. No end of a connection hears of it. Returns when."""
    lab = _lab(site)
    moment = time.monotonic()
    call("ip", "-n", lab.switch, "link", "set", f"h{host}", "down")
    return moment


def restore(site: Site, host: int) -> float:
    """Connects the cable again; returns when. The kernel uses it up to a second later."""
    lab = _lab(site)
    call("ip", "-n", lab.switch, "link", "set", f"h{host}", "up")
    return time.monotonic()


def end_silence(site: Site, host: int) -> None:
    """Restores the link, and waits until nobody takes the other end for silent any more.

    Connections that were heard of a moment later than others are given up a moment later.
    """
    restore(site, host)
    time.sleep(1.5)


def slow_down(site: Site, host: int, rate: str) -> None:
    """Shapes what the host receives; `rate` as of tc, "5mbit"."""
    lab = _lab(site)
    call(
        *("tc", "-n", lab.switch, "qdisc", "replace", "dev", f"h{host}", "root", "tbf"),
        *("rate", rate, "burst", f"{_BURST}b", "limit", str(_QUEUE)),
    )


def restore_rate(site: Site, host: int) -> None:
    slow_down(site, host, RATE)


def lose(site: Site, host: int, share: float) -> None:
    """Drops that share of the packets to the host, at random.

    Kernels may lack netem. A classifier of four instructions draws a random number and sends the
    unlucky packets to a class whose queue holds nothing.
    """
    lab = _lab(site)
    device = ("dev", f"h{host}")
    limit = int(share * 2**32)
    # ld random; if it is below the limit: match, else: none
    program = f"4,32 0 0 4294963256,53 1 0 {limit},6 0 0 4294967295,6 0 0 0"
    tc = ("tc", "-n", lab.switch)
    call(*tc, "qdisc", "replace", *device, "root", "handle", "1:", "htb", "default", "10")
    for number in ("10", "20"):
        name = ("classid", f"1:{number}", "htb", "rate", RATE, "burst", "128k")
        call(*tc, "class", "add", *device, "parent", "1:", *name)
    call(*tc, "qdisc", "add", *device, "parent", "1:20", "bfifo", "limit", "1")
    call(
        *(*tc, "filter", "add", *device, "parent", "1:", "protocol", "all"),
        *("bpf", "bytecode", program, "flowid", "1:20"),
    )


def stop_losing(site: Site, host: int) -> int:
    """Restores the link; returns how many packets were dropped."""
    lab = _lab(site)
    shown = call("tc", "-n", lab.switch, "-s", "class", "show", "dev", f"h{host}")
    part = shown.partition("class htb 1:20")[2]
    dropped = re.search(r"dropped (\d+)", part)
    call("tc", "-n", lab.switch, "qdisc", "del", "dev", f"h{host}", "root")
    restore_rate(site, host)
    return int(dropped[1]) if dropped else 0


def reset(site: Site, host: int) -> float:
    """Resets the host's connections to other hosts, but not those of the store; returns when."""
    lab = _lab(site)
    moment = time.monotonic()
    call(
        *(*lab.enter(host), "ss", "--kill", "--tcp", "--no-header", "state", "established"),
        *("dst", "10.77.0.0/24", "and", "dport", "!=", f":{STORE_PORT}"),
        *("and", "sport", "!=", f":{STORE_PORT}"),
    )
    return moment


def listeners(site: Site, host: int) -> list[int]:
    """The TCP ports on which processes of a host listen, without the store's."""
    lab = _lab(site)
    lines = call(*lab.enter(host), "ss", "-ltnH").splitlines()
    ports = {int(line.split()[3].rpartition(":")[2]) for line in lines}
    return sorted(ports - {STORE_PORT})


_SENDER = """
import socket, sys
address, port = sys.argv[1], int(sys.argv[2])
payload = sys.stdin.buffer.read()
with socket.create_connection((address, port), timeout=2) as connection:
    connection.sendall(payload)
    connection.settimeout(float(sys.argv[3]))
    try:
        while connection.recv(65536):
            pass
    except OSError:
        pass
"""


def frames(rng: random.Random) -> bytes:
    """Noise; or what UCX's tcp transport sends first, cut short, or with noise behind it."""
    noise = rng.randbytes(rng.choice([0, 1, 7, 64, 1000, 100_000]))
    kind = rng.randrange(3)
    if kind == 0:
        return noise
    head = struct.pack("<Q", _UCX_MAGIC)
    if kind == 1:
        return head[: rng.randrange(len(head) + 1)]
    return head + noise


def send_garbage(site: Site, host: int, rng: random.Random) -> list[tuple[int, int]]:
    """Sends frames to each port of the host from another one; returns (port, bytes sent)."""
    lab = _lab(site)
    sent = []
    for port in listeners(site, host):
        payload = frames(rng)
        sender = (host + 1) % lab.topology.hosts
        subprocess.run(
            [
                *(*lab.enter(sender), sys.executable, "-c", _SENDER),
                *(lab.topology.address(host), str(port), "0.1"),
            ],
            input=payload,
            capture_output=True,
            timeout=20,
            check=False,
        )
        sent.append((port, len(payload)))
    return sent
