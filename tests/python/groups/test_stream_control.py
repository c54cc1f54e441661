"""Pairs of ranks that use many connections say everything over them."""

from __future__ import annotations

import contextlib
import pathlib
import struct
import subprocess
import time
from collections.abc import Iterator

import pytest
from wide_jobs import UCX_PORTS, WideJob, on_host

from tests.lab import Line, WideLab, WideTopology, wide

TRAINING = {"seed": 11, "calls": 10, "sizes": [1, 1000, 40_000, 300_000]}
TENSOR = struct.pack("<32f", *[1.0] * 32)  # what rank 0 broadcasts
CONTROL = b"all_reduce (sequence"  # a rank asks another one about its call

pytestmark = pytest.mark.skipif(bool(wide.unavailable()), reason=str(wide.unavailable()))

# Writes the payload of each TCP packet to a file.
RECORDER = """
import socket, sys
line = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
line.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
with open(sys.argv[1], "wb", buffering=0) as to:
    print("listens", flush=True)
    while True:
        packet = line.recv(65536)
        tcp = packet[4 * (packet[0] & 15):]
        if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:
            to.write(tcp[4 * (tcp[12] >> 4):])
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[WideLab]:
    with WideLab(WideTopology(line=Line(rtt="10ms", rate="200mbit"))) as it:
        yield it


@contextlib.contextmanager
def recorded(lab: WideLab, host: int, path: pathlib.Path) -> Iterator[None]:
    process = subprocess.Popen(
        [*lab.enter(host), "python3", "-I", "-S", "-c", RECORDER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        yield
    finally:
        process.kill()
        process.communicate()


def connections(lab: WideLab, host: int) -> list[set[int]]:
    """The ports of each TCP connection to another host."""
    own = f"src {lab.topology.address(host)}"
    lines = on_host(lab, host, "ss", "-Htn", "state", "established", own).splitlines()
    return [{int(word.rsplit(":", 1)[1]) for word in line.split()[2:4]} for line in lines]


@pytest.mark.parametrize("encrypts", ["1", "0"])
def test_nobody_on_the_way_reads_tensors_or_control_messages(
    lab: WideLab, tmp_path: pathlib.Path, encrypts: str
) -> None:
    """Without encryption he does, so this recorder sees what there is."""
    path = tmp_path / "packets"
    with WideJob(lab, env={"Q7X2_ENCRYPT": encrypts}) as job, recorded(lab, 0, path):
        job.start([0], do="train", seed=1, calls=1, sizes=[1])
        time.sleep(0.5)  # rank 0 asks what rank 1 does
        job.start([1], do="train", seed=1, calls=1, sizes=[1])
        job.answers()
        said = job.do(do="broadcast", root=0) + job.do(do="messages", size=1000)
        assert all(each.get("right") for each in said), said
        job.finish()
    packets = path.read_bytes()
    assert len(packets) > 2_000_000
    assert (TENSOR in packets) == (encrypts == "0")
    assert (CONTROL in packets) == (encrypts == "0")


@pytest.mark.parametrize("probe", ["0", "force"])
def test_they_have_no_other_connections(lab: WideLab, probe: str) -> None:
    """Neither of UCX nor heartbeats."""
    with WideJob(lab, ranks_per_host=2, env={"Q7X2_PROBE": probe}) as job:
        job.do(do="train", **TRAINING)
        said = job.do(do="messages", size=100_000) + job.do(do="loop_groups", times=3)
        assert all(each.get("right") for each in said), said
        allowed = {job.stream_port(rank) for rank in range(4)} | {job.store_port}
        for host in range(2):
            found = connections(lab, host)
            assert found
            assert [ports for ports in found if ports.isdisjoint(allowed)] == []
        job.finish()


def test_pairs_that_do_not_use_them_have_one(lab: WideLab) -> None:
    """So that the tests above see it."""
    with WideJob(lab, env={"Q7X2_STREAMS": "0"}) as job:
        job.do(do="train", **TRAINING)
        assert [ports for ports in connections(lab, 0) if not ports.isdisjoint(UCX_PORTS)]
        job.finish()


def test_pairs_that_are_found_to_be_far(lab: WideLab) -> None:
    """They talk over UCX until they know it, and say goodbye over both."""
    env = {"Q7X2_STREAMS": "far", "Q7X2_PROBE": "force"}
    with WideJob(lab, ranks_per_host=2, env=env) as job:
        assert {path for facts in job.facts for path in facts["paths"]} == {
            "many connections",
            "shared memory",
        }
        job.do(do="train", **TRAINING)
        said = job.do(do="messages", size=100_000) + job.do(do="loop_groups", times=3)
        assert all(each.get("right") for each in said), said
        job.start([0], do="leave")
        job.start([1, 2, 3], do="broadcast", root=0)
        said = job.answers()
        assert said[0] == {"left": True}, said
        assert all(each.get("right") for each in said[1:]), said
