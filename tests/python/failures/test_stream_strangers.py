"""Strangers at the ports of many connections, who are on hosts of the job and lack its secret."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
import strangers
from wide_jobs import WideJob, reset

from tests.lab import Line, WideLab, WideTopology, wide

TRAINING = {"seed": 11, "calls": 30, "sizes": [1, 1000, 40_000, 300_000]}

pytestmark = pytest.mark.skipif(bool(wide.unavailable()), reason=str(wide.unavailable()))

# Prints in hex what is said first to one of these ports: what somebody on the way can record.
SNIFFER = """
import socket, sys
ports = {int(each) for each in sys.argv[1:]}
line = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
print("listens", flush=True)
while True:
    packet = line.recv(65536)
    tcp = packet[4 * (packet[0] & 15):]
    if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP: continue
    said = tcp[4 * (tcp[12] >> 4):]
    if int.from_bytes(tcp[2:4]) in ports and said:
        print(said.hex(), flush=True)
        break
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[WideLab]:
    with WideLab(WideTopology(line=Line(rtt="10ms", rate="200mbit"))) as it:
        yield it


@contextlib.contextmanager
def on_host(lab: WideLab, host: int, *program: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*lab.enter(host), "python3", "-I", "-S", "-c", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def attack(job: WideJob, rank: int, name: str, *arguments: str) -> tuple[str, ...]:
    """The program of an attack on a rank's port, from the other rank's host or its own."""
    source = pathlib.Path(strangers.__file__).read_text()
    address = job.lab.topology.address(job.hosts[rank])
    return (source, name, address, str(job.stream_port(rank)), *arguments)


def digest(job: WideJob) -> str:
    (found,) = {each.get("digest", str(each)) for each in job.do(do="train", **TRAINING)}
    return found


@pytest.mark.parametrize(
    "encrypts", ["1", pytest.param("0", marks=pytest.mark.nightly("without encryption, too"))]
)
def test_random_bytes_and_recorded_hellos_harm_nothing(lab: WideLab, encrypts: str) -> None:
    with WideJob(lab, env={"Q7X2_ENCRYPT": encrypts}) as job, contextlib.ExitStack() as stack:
        ports = [str(job.stream_port(rank)) for rank in range(2)]
        sniffer = stack.enter_context(on_host(lab, 0, SNIFFER, *ports))
        assert said(sniffer) == "listens"
        right = digest(job)
        recorded = said(sniffer)
        for rank in range(2):
            for name, *arguments in (
                ("inject",),
                ("replay", recorded),
                ("replay", recorded[: len(recorded) // 4 * 2]),
            ):
                with on_host(lab, 1 - rank, *attack(job, rank, name, *arguments)) as program:
                    answers = set(json.loads(said(program)).values())
                # TLS answers a hello that comes again, by which nobody learns or gets anything.
                assert "answered" not in answers or encrypts == "1", (name, answers)
        assert digest(job) == right
        job.finish()


def test_connections_that_strangers_hold_keep_nobody_out(lab: WideLab) -> None:
    """More than the ranks take in at once; then the job's own break, and must be made again."""
    with WideJob(lab) as job, contextlib.ExitStack() as held:
        right = digest(job)
        for rank in range(2):
            program = attack(job, rank, "hold", "1500")
            holder = held.enter_context(on_host(lab, 1 - rank, *program))
            assert set(json.loads(said(holder)).values()) == {1500}
        assert digest(job) == right
        for host in range(2):
            assert reset(job, host) > 0
        assert digest(job) == right
        job.finish()
