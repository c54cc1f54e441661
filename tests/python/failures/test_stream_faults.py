"""Paths of many connections whose connections break, whose line is cut, or whose port is closed.

Two ranks are at two distant sites (`wide_jobs.py`). What they compute under faults is compared, bit
by bit, with what they compute without.
"""

from __future__ import annotations

import contextlib
import pathlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from wide_jobs import WideJob, cut, firewall, reset, stream_connections

from tests.lab import Line, WideLab, WideTopology, wide

SIZES = [1, 1000, 40_000, 300_000]
TRAINING = {"seed": 11, "calls": 30, "sizes": SIZES}
LONG = {"seed": 5, "calls": 1, "sizes": [8 << 20], "at_once": 1}  # 32 MiB each
MANY = {"seed": 7, "calls": 64, "sizes": [50_000], "at_once": 64}
SILENCE = 3.0  # seconds

ANOTHER_WAY = pytest.mark.nightly("the same fault in another way")

pytestmark = pytest.mark.skipif(
    bool(wide.unavailable(nat=True)), reason=str(wide.unavailable(nat=True))
)


@pytest.fixture(scope="module")
def running() -> Iterator[WideLab]:
    with WideLab(WideTopology(line=Line(rtt="10ms", rate="200mbit"))) as lab:
        yield lab


@pytest.fixture
def lab(running: WideLab) -> Iterator[WideLab]:
    yield running
    running.line.heal()


@pytest.fixture
def job(lab: WideLab) -> Iterator[WideJob]:
    with WideJob(lab, env={"Q7X2_SILENCE": str(SILENCE)}) as it:
        yield it


CUTS = [
    pytest.param(LONG, False, id="a long call"),
    pytest.param(LONG, True, id="a long call, one way", marks=ANOTHER_WAY),
    pytest.param(MANY, False, id="many calls", marks=ANOTHER_WAY),
    pytest.param(MANY, True, id="many calls, one way"),
]


def expected(job: WideJob, **what: Any) -> str:
    answers = job.do(do="train", **what)
    digests = {each.get("digest") for each in answers}
    assert len(digests) == 1, answers
    digest = digests.pop()
    assert isinstance(digest, str), answers
    return digest


def all_right(job: WideJob, digest: str, answers: list[dict[str, Any]]) -> None:
    for each in answers:
        assert each.get("digests") == [digest], each
    job.finish()


def test_connections_that_are_reset_lose_nothing(
    job: WideJob, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    digest = expected(job, **TRAINING)
    flag = tmp_path / "over"
    job.start(do="train_until", flag=str(flag), **TRAINING)
    chance = random.Random(3)
    num_reset = 0
    while num_reset < (200 if request.config.getoption("--nightly") else 30):
        num_reset += reset(job, chance.randrange(2), chance)
        time.sleep(chance.random() / 10)
    flag.touch()
    all_right(job, digest, job.answers())


def test_all_connections_reset_at_once_lose_nothing(job: WideJob, tmp_path: pathlib.Path) -> None:
    digest = expected(job, **LONG)
    flag = tmp_path / "over"
    job.start(do="train_until", flag=str(flag), **LONG)
    num_reset = 0
    for _ in range(5):
        time.sleep(0.3)
        num_reset += reset(job, 0)
    assert num_reset > 5
    flag.touch()
    all_right(job, digest, job.answers())


def test_a_connection_that_a_firewall_swallows_is_passed_by(
    job: WideJob, tmp_path: pathlib.Path
) -> None:
    digest = expected(job, **TRAINING)
    flag = tmp_path / "over"
    job.start(do="train_until", flag=str(flag), **TRAINING)
    chance = random.Random(4)
    for way in ("drop", "reject with tcp reset", "drop"):
        ends = [end.rpartition(":")[2] for end in chance.choice(stream_connections(job, 0))]
        with firewall(job.lab, 1, f"tcp sport {ends[0]} tcp dport {ends[1]} {way}"):
            time.sleep(0.7)
    flag.touch()
    all_right(job, digest, job.answers())


@pytest.mark.parametrize(("what", "one_way"), CUTS)
def test_a_short_cut_is_survived(
    job: WideJob, tmp_path: pathlib.Path, what: dict[str, Any], one_way: bool
) -> None:
    digest = expected(job, **what)
    flag = tmp_path / "over"
    job.start(do="train_until", flag=str(flag), **what)
    for sites in ((0, 1), (1, 0)):
        time.sleep(0.3)
        with cut(job.lab, sites=sites, one_way=one_way):
            time.sleep(SILENCE / 2)
        time.sleep(0.5)
    flag.touch()
    all_right(job, digest, job.answers())


def test_a_cut_while_idle_is_survived(job: WideJob) -> None:
    digest = expected(job, **TRAINING)
    time.sleep(SILENCE)
    with cut(job.lab):
        time.sleep(SILENCE / 2)
    time.sleep(SILENCE)
    assert expected(job, **TRAINING) == digest
    reset(job, 0)
    assert expected(job, **TRAINING) == digest
    job.finish()


@pytest.mark.parametrize(("what", "one_way"), CUTS)
def test_a_long_cut_is_named(
    job: WideJob, tmp_path: pathlib.Path, what: dict[str, Any], one_way: bool
) -> None:
    job.do(do="train", **TRAINING)
    job.start(do="train_until", flag=str(tmp_path / "never"), **what)
    time.sleep(0.3)
    with cut(job.lab, sites=(0, 1), one_way=one_way):
        answers = job.answers()
    for rank, said in enumerate(answers):
        assert said.get("raised") == "DistBackendError", said
        assert f"rank {1 - rank} (pid" in said["text"], said
        assert "(Q7X2_SILENCE)" in said["text"], said


WAYS = ["drop", pytest.param("reject with tcp reset", marks=ANOTHER_WAY)]


@pytest.mark.parametrize("way", WAYS)
def test_one_stream_port_behind_a_firewall(lab: WideLab, way: str) -> None:
    """The side that can reach the other one makes the connections.

    The firewall keeps new connections out, and lets packets of those that are there pass.
    """
    with WideJob(lab) as open_job, WideJob(lab) as job:
        digest = expected(open_job, **TRAINING)
        new = f"tcp dport {job.stream_port(1)} tcp flags & (syn | ack) == syn"
        with firewall(lab, 1, f"{new} {way}"):
            assert reset(job, 0) > 0
            assert expected(job, **TRAINING) == digest
        job.finish()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [100, 3_000_000], ids=["a copied message", "a long message"])
def test_both_stream_ports_behind_firewalls(lab: WideLab, way: str, size: int) -> None:
    """Who sends a short message does not wait for it."""
    with WideJob(lab) as job, contextlib.ExitStack() as walls:
        for host in range(2):
            rule = f"tcp dport {job.stream_port(host)} {way}"
            walls.enter_context(firewall(lab, host, rule))
        assert reset(job, 0) > 0
        sent, received = job.do(do="broadcast", root=0, size=size)
        assert received.get("raised") == "DistBackendError", received
        give_up = time.monotonic() + 10
        while size == 100 and "raised" not in sent and time.monotonic() < give_up:
            time.sleep(0.1)
            (sent,) = job.do([0], do="broadcast", root=0, size=size)
        assert sent.get("raised") == "DistBackendError", sent
        reasons = ("no other could be made", f"{job.stream_port(1)} is refused", "has given up")
        assert "rank 1 (pid" in sent["text"], sent
        assert any(reason in sent["text"] for reason in reasons), sent
