"""A job whose ranks are on distant virtual hosts, obey the test, and use many connections.

with WideJob(lab) as job:
    job.start(do="train", seed=1, calls=20, sizes=[1000])  # all ranks
    reset(job, host=0)  # meanwhile
    answers = job.answers()
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import queue
import random
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import interpreters

from tests.lab import WideLab
from tests.lab.namespaces import call

STORE_PORTS = itertools.count(28600)
HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 120.0  # for an answer that must come; a test never waits that long if all is well

# What a run without faults is compared with must add in the same order.
SAME_ALGORITHM = {"Q7X2_REFINE": "0", "Q7X2_ALGO": "ring"}

# Where UCX listens, so that what else listens is for streams.
UCX_PORTS = range(21000, 21500)


class Rank:
    """A process on a virtual host that runs ``wide_rank.py``."""

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self.warnings: list[str] = []
        self._said: queue.Queue[str] = queue.Queue()
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)
        self._said.put("")

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.warnings.append(line)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead, which the test will see
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def said(self, patience: float = PATIENCE_S) -> dict[str, Any]:
        """Its next answer. An empty one if it has ended."""
        try:
            line = self._said.get(timeout=patience)
        except queue.Empty:
            raise AssertionError(
                f"no answer in {patience:g} s:\n{''.join(self.warnings)}"
            ) from None
        return json.loads(line) if line else {}

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(timeout=5)


class WideJob:
    """Ranks on the hosts of a lab, one after another; a context manager that ends them."""

    def __init__(
        self,
        lab: WideLab,
        *,
        hosts: Sequence[int] | None = None,
        ranks_per_host: int = 1,
        env: dict[str, str] | None = None,
        host_env: dict[int, dict[str, str]] | None = None,
    ) -> None:
        """`hosts`: the host of each rank; default: all, with `ranks_per_host` each. `host_env`: for
        the ranks of a host alone."""
        self.lab = lab
        self.hosts = list(hosts) if hosts else lab.topology.blocks(ranks_per_host)
        self.store_port = next(STORE_PORTS)
        self.ranks: list[Rank] = []
        for rank, host in enumerate(self.hosts):
            self.ranks.append(
                Rank(
                    [*lab.enter(host), interpreters.python(), str(HERE / "wide_rank.py")],
                    {
                        "RANK": str(rank),
                        "WORLD_SIZE": str(len(self.hosts)),
                        "LOCAL_RANK": str(rank % ranks_per_host),
                        "LOCAL_WORLD_SIZE": str(ranks_per_host),
                        "MASTER_ADDR": lab.topology.address(0),
                        "MASTER_PORT": str(self.store_port),
                        "OMP_NUM_THREADS": "1",
                        "Q7X2_PROBE": "0",
                        "Q7X2_STREAMS": "1",
                        "UCX_TCP_PORT_RANGE": f"{UCX_PORTS.start}-{UCX_PORTS.stop - 1}",
                        **SAME_ALGORITHM,
                        **(env or {}),
                        **(host_env or {}).get(host, {}),
                    },
                )
            )
        self.facts: list[dict[str, Any]] = []

    def __enter__(self) -> WideJob:
        try:
            self.facts = self.answers()
            assert all(self.facts), "".join(line for rank in self.ranks for line in rank.warnings)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, ranks: Iterable[int] | None = None, **what: Any) -> None:
        for rank in self._chosen(ranks):
            self.ranks[rank].tell(json.dumps(what))

    def answers(
        self, ranks: Iterable[int] | None = None, patience: float = PATIENCE_S
    ) -> list[dict[str, Any]]:
        return [self.ranks[rank].said(patience) for rank in self._chosen(ranks)]

    def do(self, ranks: Iterable[int] | None = None, **what: Any) -> list[dict[str, Any]]:
        chosen = list(self._chosen(ranks))
        self.start(chosen, **what)
        return self.answers(chosen)

    def _chosen(self, ranks: Iterable[int] | None) -> Iterable[int]:
        return range(len(self.ranks)) if ranks is None else ranks

    def finish(self) -> None:
        """Every rank leaves, and says so with its exit code."""
        for rank in self.ranks:
            rank.tell("end")
        for rank in self.ranks:
            assert rank.process.wait(PATIENCE_S) == 0, "".join(rank.warnings)

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()

    def pid(self, rank: int) -> int:
        """Of the rank's own process, as the test knows it."""
        for each in self.lab.pids(self.hosts[rank]):
            words = pathlib.Path(f"/proc/{each}/status").read_text()
            if f"NSpid:\t{each}\t{self.facts[rank]['pid']}\n" in words:
                return each
        raise AssertionError(f"rank {rank} has ended")

    def stream_port(self, rank: int) -> int:
        """Where the rank takes stream connections."""
        own = self.lab.topology.address(self.hosts[rank])
        ports = [port for address, port in self.facts[rank]["ports"] if address == own]
        (found,) = set(ports) - set(UCX_PORTS)
        return found


# ------------------------------------------------------------------------------- what goes wrong


def on_host(lab: WideLab, host: int, *command: str) -> str:
    return call(*lab.enter(host), *command)


def stream_connections(job: WideJob, host: int) -> list[tuple[str, str]]:
    """The two ends of each stream connection that ranks of the host have, as `ss` spells them."""
    ports = [job.stream_port(rank) for rank in range(len(job.ranks))]
    wanted = " or ".join(f"sport = :{port} or dport = :{port}" for port in ports)
    text = on_host(job.lab, host, "ss", "-Htnp", "state", "established", f"( {wanted} )")
    owners = [f"pid={job.facts[r]['pid']}," for r, at in enumerate(job.hosts) if at == host]
    lines = [line.split() for line in text.splitlines() if any(each in line for each in owners)]
    return [(words[2], words[3]) for words in lines]


def reset(job: WideJob, host: int, chance: random.Random | None = None) -> int:
    """Ends one stream connection of a host by chance, or all; both kernels learn it. How many."""
    found = stream_connections(job, host)
    if chance is not None:
        found = chance.sample(found, min(1, len(found)))
    for here, there in found:
        on_host(job.lab, host, "ss", "-K", "-tn", f"src {here} and dst {there}")
    return len(found)


@contextlib.contextmanager
def firewall(lab: WideLab, host: int, rule: str) -> Iterator[None]:
    """`rule`: of nft, for packets that reach the host, such as `tcp dport 7 drop`."""
    on_host(
        lab,
        host,
        "nft",
        "add table inet wall;"
        "add chain inet wall in { type filter hook input priority 0; };"
        f"add rule inet wall in {rule}",
    )
    try:
        yield
    finally:
        on_host(lab, host, "nft", "delete", "table", "inet", "wall")


@contextlib.contextmanager
def cut(lab: WideLab, **how: Any) -> Iterator[None]:
    lab.line.cut(**how)
    try:
        yield
    finally:
        lab.line.heal()
