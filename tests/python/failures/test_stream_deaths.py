"""Ranks at two distant sites that die, stop, leave or fork while they use many connections."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from collections.abc import Iterator

import pytest
from wide_jobs import WideJob, cut

from tests.lab import Line, WideLab, WideTopology, wide

TRAINING = {"seed": 11, "calls": 30, "sizes": [1, 1000, 40_000, 300_000]}
LONG = {"seed": 5, "calls": 1, "sizes": [8 << 20], "at_once": 1}  # 32 MiB
SILENCE = 1.0  # seconds
VICTIM = 3
SURVIVORS = (0, 1, 2)

pytestmark = pytest.mark.skipif(bool(wide.unavailable()), reason=str(wide.unavailable()))


@pytest.fixture(scope="module")
def lab() -> Iterator[WideLab]:
    with WideLab(WideTopology(line=Line(rtt="10ms", rate="200mbit"))) as it:
        yield it


@pytest.fixture
def job(lab: WideLab) -> Iterator[WideJob]:
    """Two ranks at each site."""
    with WideJob(lab, ranks_per_host=2) as it:
        yield it


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a forked child"])
def test_a_killed_rank_is_named_and_the_others_go_on(
    job: WideJob, tmp_path: pathlib.Path, forked: bool
) -> None:
    """A child like a worker of a data loader outlives it."""
    job.do(do="train", **TRAINING)
    if forked:
        job.do([VICTIM], do="fork", seconds=120)
    pid = job.pid(VICTIM)
    job.start(do="train_until", flag=str(tmp_path / "never"), **TRAINING)
    os.kill(pid, signal.SIGKILL)
    for said in job.answers(SURVIVORS, patience=60):
        assert said.get("raised") == "DistBackendError", said
        assert f"rank {VICTIM} (pid" in said["text"], said
    shrunk = job.do(SURVIVORS, do="shrink", dead=[VICTIM])
    assert [said.get("sum") for said in shrunk] == [3.0] * 3, shrunk


@pytest.mark.parametrize(
    "connected",
    [False, pytest.param(True, marks=pytest.mark.nightly("of a job on one switch: test_silence"))],
    ids=["before the first call", "in the middle of a call"],
)
def test_a_stopped_rank_is_late_and_not_dead(lab: WideLab, connected: bool) -> None:
    """Its kernel takes connections, which it does not answer."""
    for victim in range(2):  # one of the two makes the connections
        with WideJob(lab, env={"Q7X2_SILENCE": str(SILENCE)}) as job:
            pid = job.pid(victim)
            if connected:
                job.do(do="train", **LONG)
                job.start(do="train", **LONG)
                time.sleep(0.3)
                os.kill(pid, signal.SIGSTOP)
            else:
                os.kill(pid, signal.SIGSTOP)
                job.start(do="train", **LONG)
            time.sleep(4 * SILENCE)
            os.kill(pid, signal.SIGCONT)
            answers = job.answers()
            assert len({said.get("digest", str(said)) for said in answers}) == 1, answers
            job.finish()


def test_a_rank_that_dies_while_nobody_talks_is_named(job: WideJob) -> None:
    job.do(do="train", **TRAINING)
    os.kill(job.pid(VICTIM), signal.SIGKILL)
    time.sleep(2)
    job.start(SURVIVORS, do="train", **TRAINING)
    for said in job.answers(SURVIVORS, patience=5):
        assert said.get("raised") == "DistBackendError", said
        assert f"rank {VICTIM} (pid" in said["text"], said


def test_a_silent_host_is_noticed_by_who_waits_for_it(lab: WideLab) -> None:
    """Nothing is on its way meanwhile."""
    with WideJob(lab, env={"Q7X2_SILENCE": str(SILENCE)}) as job:
        job.do(do="train", **TRAINING)
        job.start([0], do="receive", source=1)
        time.sleep(3 * SILENCE)  # it waits without harm
        with cut(lab):
            (said,) = job.answers([0], patience=3 * SILENCE)
        assert said.get("raised") == "DistBackendError", said
        assert "rank 1 (pid" in said["text"], said
        assert said["seconds"] > 3 * SILENCE, said


def test_groups_that_come_and_go(job: WideJob) -> None:
    assert all(said.get("right") for said in job.do(do="loop_groups", times=20))
    job.finish()


def test_who_leaves_right_after_a_call_is_not_missed(job: WideJob) -> None:
    job.start([0], do="leave")
    job.start([1, 2, 3], do="broadcast", root=0)
    left, *others = job.answers()
    assert left == {"left": True}
    assert all(said.get("right") for said in others), others
