"""Groups over many connections on lines of all kinds, and what they cost."""

from __future__ import annotations

import pytest
from wide_jobs import WideJob

from tests.lab import Line, WideLab, WideTopology, wide

TRAINING = {"seed": 11, "calls": 30, "sizes": [1, 1000, 40_000, 300_000]}
QUIET = Line(rtt="10ms", rate="200mbit")
MIB = 1 << 20

pytestmark = pytest.mark.skipif(bool(wide.unavailable()), reason=str(wide.unavailable()))


def digest(job: WideJob) -> str:
    (found,) = {said.get("digest", str(said)) for said in job.do(do="train", **TRAINING)}
    return found


def test_results_are_those_of_a_quiet_line() -> None:
    with WideLab(WideTopology(line=QUIET)) as lab, WideJob(lab) as job:
        right = digest(job)
        lab.line.change(loss="1%", jitter="5ms", reorder="2%", duplicate="2%")
        assert digest(job) == right
        counts = lab.line.counts()[0, 1]
        assert min(counts.lost, counts.reordered, counts.duplicated) > 0
        job.finish()


def test_hosts_with_ipv6_alone() -> None:
    with WideLab(WideTopology(line=QUIET, ipv6=True)) as lab, WideJob(lab) as job:
        assert job.facts[0]["paths"] == ["many connections"]
        assert len(digest(job)) == 64
        job.finish()


@pytest.mark.nightly("sixteen processes")
def test_connections_and_memory_of_a_job_of_16_ranks() -> None:
    topology = WideTopology(sites=2, hosts_per_site=4, line=QUIET)
    with WideLab(topology) as lab, WideJob(lab, ranks_per_host=2) as job:
        job.do(do="train", seed=1, calls=50, sizes=[250_000])
        facts = job.do(do="facts")
        for rank, (before, after) in enumerate(zip(job.facts, facts, strict=True)):
            print(
                f"rank {rank}: {after['connections']} connections, "
                f"{(after['resident'] - before['resident']) / MIB:.0f} MiB more than before"
            )
            assert after["connections"] < 200
        job.finish()


@pytest.mark.nightly("two thousand calls")
def test_memory_does_not_grow() -> None:
    with WideLab(WideTopology(line=QUIET)) as lab, WideJob(lab) as job:
        calls = {"do": "train", "seed": 3, "sizes": [1, 5000, 70_000, 300_000]}
        job.do(**calls, calls=500)
        before = [said["resident"] for said in job.do(do="facts")]
        job.do(**calls, calls=2000)
        after = [said["resident"] for said in job.do(do="facts")]
        print([f"{a / MIB:.1f} -> {b / MIB:.1f} MiB" for a, b in zip(before, after, strict=True)])
        for a, b in zip(before, after, strict=True):
            assert b - a < 16 * MIB
        job.finish()
