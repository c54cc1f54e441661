"""Somebody without the secret, at the ports of ranks: writes, guesses, injects, replays, floods.

Two ranks run on two virtual hosts. The stranger is another user on a third one, and a joiner comes
from a fourth.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import textwrap
from collections.abc import Iterator
from typing import Any

import interpreters
import pytest
import strangers
import torch
import torch.distributed as dist

from tests import lab as lab_package
from tests.lab import Lab, Topology

RANKS, STRANGER, JOINER_HOST = 2, 2, 3
USER_TAG = 0x77
STORE_PORTS = itertools.count(29555)
MOST_GROUPS = 8

needs_lab = pytest.mark.skipif(
    lab_package.unavailable() is not None, reason=str(lab_package.unavailable())
)

# Nobody: no capability that root would leave it.
ANOTHER_USER = [
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=-all", "--bounding-set=-all", "--pdeathsig", "KILL", "--"),
    *("/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "python3", "-I", "-S", "-c"),
]

# Of a heartbeat, by somebody who can prove nothing.
HELLO = b"q7hb" + (2).to_bytes(4, "little") + os.urandom(48)

JOB = """
    import ctypes, json, os, resource, sys
    from datetime import timedelta
    import torch, torch.distributed as dist
    from strangers import listening

    for limit in map(int, sys.argv[1:]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    dist.init_process_group("q7x2", timeout=timedelta(seconds=600))
    rank, other = dist.get_rank(), 1 - dist.get_rank()

    def reduce():
        tensor = torch.full((1 << 16,), float(rank + 1))
        dist.all_reduce(tensor)
        return bool(tensor.eq(3).all())

    def tell(**facts):
        print(json.dumps(facts), flush=True)

    victim = ctypes.create_string_buffer(64)
    message = torch.zeros(8)
    receive = dist.irecv(message, other, tag=0x77) if rank == 0 else None
    assert all(reduce() for _ in range(3))
    tell(address=ctypes.addressof(victim), ports=listening())
    for line in sys.stdin:
        if line == "check\\n":
            received = receive is not None and receive.is_completed()
            tell(right=reduce(), written=victim.raw != bytes(64), received=received)
        elif line.startswith("handle "):
            import q7x2
            tell(handle=q7x2.reconfigure_handle())
        elif line.startswith("join "):
            import q7x2
            group = q7x2.reconfigure(1, json.loads(line[5:]), timeout=60)
            tensor = torch.ones(4)
            dist.all_reduce(tensor, group=group)
            tell(sum=tensor.tolist())
        else:
            break
    if rank == 1:
        dist.send(torch.arange(8.0), 0, tag=0x77)
    else:
        receive.wait()
    tell(message=message.tolist())
    dist.destroy_process_group()
"""

JOINER = """
    import json, sys, torch, torch.distributed as dist, q7x2

    print(json.dumps({"handle": q7x2.reconfigure_handle()}), flush=True)
    group = q7x2.reconfigure(1, json.loads(sys.stdin.readline()), timeout=60)
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=group)
    print(json.dumps({"sum": tensor.tolist()}), flush=True)
"""


class Program:
    """A program on a virtual host, which answers lines with JSON."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def said(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with status {self.process.wait()}"
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Job:
    """Two ranks, and a stranger who reaches their hosts."""

    def __init__(self, lab: Lab, limit_of_files: int | None = None) -> None:
        self.lab = lab
        env = {
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": lab.topology.address(0),
            "MASTER_PORT": str(next(STORE_PORTS)),
            "Q7X2_PROBE": "0",
            "Q7X2_SECRET": "what the stranger does not know",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(pathlib.Path(strangers.__file__).parent),
        }
        limit = [] if limit_of_files is None else [str(limit_of_files)]
        script = textwrap.dedent(JOB)
        self.env = env
        self.ranks = [
            Program(
                [*lab.enter(rank), interpreters.python(), "-c", script, *limit],
                {**env, "RANK": str(rank), "LOCAL_RANK": "0"},
            )
            for rank in range(RANKS)
        ]
        try:
            self.facts = [rank.said() for rank in self.ranks]
        except BaseException:
            self.end()
            raise

    def ports(self, rank: int) -> list[int]:
        """What the rank listens at on its host's interface, beside torch's store."""
        own = self.lab.topology.address(rank)
        found = [port for address, port in self.facts[rank]["ports"] if address == own]
        assert found, self.facts[rank]
        return found

    def attack(self, name: str, rank: int, *arguments: str) -> Program:
        source = pathlib.Path(strangers.__file__).read_text()
        ports = ",".join(str(port) for port in self.ports(rank))
        address = self.lab.topology.address(rank)
        command = [*self.lab.enter(STRANGER), *ANOTHER_USER, source, name, address, ports]
        return Program([*command, *arguments])

    def attacked(self, name: str, rank: int, *arguments: str) -> Any:
        program = self.attack(name, rank, *arguments)
        said = program.said()
        program.end()
        return said

    def told(self, line: str) -> list[Any]:
        for rank in self.ranks:
            rank.tell(line)
        return [rank.said() for rank in self.ranks]

    def check(self) -> None:
        """Nothing was written, nothing received, and the ranks work together."""
        for facts in self.told("check"):
            assert facts == {"right": True, "written": False, "received": False}

    def finish(self) -> None:
        for rank in self.ranks:
            rank.tell("end")
        assert self.ranks[0].said()["message"] == list(range(8))
        for rank in self.ranks:
            assert rank.process.wait() == 0

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(Topology(hosts=RANKS + 2, rate="1gbit")) as it:
        yield it


@pytest.fixture(scope="module")
def job(lab: Lab) -> Iterator[Job]:
    it = Job(lab)
    try:
        yield it
        it.finish()
    finally:
        it.end()


def all_shut_out(said: dict[str, str]) -> bool:
    return set(said.values()) <= {"silent", "refused"}


@needs_lab
def test_a_stranger_writes_to_no_memory(job: Job) -> None:
    for rank in range(RANKS):
        said = job.attacked("write", rank, str(job.facts[rank]["address"]))
        job.check()
        assert all_shut_out(said), said


@needs_lab
def test_a_stranger_sends_no_message(job: Job) -> None:
    """With the tags of the receive that rank 0 has posted for rank 1, in any of its groups."""
    tags = [f"{2 << 62 | slot << 52 | 1 << 39 | USER_TAG:x}" for slot in range(MOST_GROUPS)]
    said = job.attacked("guess", 0, *tags)
    job.check()
    assert all_shut_out(said), said


@needs_lab
def test_random_bytes_of_a_stranger_end_nothing(job: Job) -> None:
    for rank in range(RANKS):
        said = job.attacked("inject", rank)
        assert all_shut_out(said), said
    job.check()


@needs_lab
def test_a_stranger_who_says_hello_is_not_answered(job: Job) -> None:
    for rank in range(RANKS):
        said = job.attacked("replay", rank, HELLO.hex())
        assert set(said.values()) <= {"silent", "dropped"}, said
    job.check()


@needs_lab
def test_connections_that_a_stranger_holds_take_nothing(job: Job) -> None:
    holder = job.attack("hold", 0, "200")
    try:
        made = holder.said()
        assert set(made.values()) == {0}, made
        job.check()
    finally:
        holder.end()


@needs_lab
def test_a_flood_of_a_stranger_keeps_nobody_from_work(job: Job) -> None:
    flooder = job.attack("flood", 0, "2")
    try:
        job.check()
        assert flooder.said() > 0
    finally:
        flooder.end()
    job.check()


@needs_lab
def test_a_joiner_comes_after_a_stranger_held_1500_connections(lab: Lab) -> None:
    """Each rank may open 1,024 files."""
    job = Job(lab, limit_of_files=1024)
    holders = [job.attack("hold", rank, "1500") for rank in range(RANKS)]
    joiner = None
    try:
        for holder in holders:
            made = holder.said()
            assert set(made.values()) == {0}, made
        job.check()
        handles = [facts["handle"] for facts in job.told("handle ")]
        joiner = Program(
            [*lab.enter(JOINER_HOST), interpreters.python(), "-c", textwrap.dedent(JOINER)],
            {name: value for name, value in job.env.items() if name != "WORLD_SIZE"},
        )
        handles.append(joiner.said()["handle"])
        joiner.tell(json.dumps(handles))
        for facts in job.told(f"join {json.dumps(handles)}"):
            assert facts["sum"] == [3.0] * 4
        assert joiner.said()["sum"] == [3.0] * 4
    finally:
        for program in [*holders, *([joiner] if joiner else [])]:
            program.end()
        job.end()


@pytest.mark.beyond("gloo", "it listens on the host's interface")
@pytest.mark.ranks(2, fresh=True)
def test_a_job_on_one_host_listens_on_the_loopback_only(world_size: int) -> None:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world_size] * 1000
    addresses = {address for address, _ in strangers.listening()}
    assert addresses <= {"127.0.0.1"}, addresses


@pytest.mark.beyond("gloo", "it has no heartbeats")
@pytest.mark.ranks(2, fresh=True)
def test_a_user_of_the_host_is_not_answered(world_size: int) -> None:
    """The port on the loopback takes calls, and believes none without a proof."""
    dist.all_reduce(torch.ones(4))
    for address, port in strangers.listening():
        assert strangers.replay(address, [port], HELLO) == {port: "dropped"}
        assert strangers.inject(address, [port])
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world_size] * 1000
