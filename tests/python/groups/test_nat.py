"""Ranks behind NAT: they call others, have a port outside that leads to them, or meet at a relay.

Site 0 of the lab has no NAT. Hosts of sites 1 and 2 can connect to others, and nobody can connect
to them. What ranks compute is compared, bit by bit, with what ranks of one host compute.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import interpreters
import pytest
from wide_jobs import WideJob, reset

from tests.lab import Line, WideLab, WideTopology, wide
from tests.lab.namespaces import call, ip

TRAINING = {"seed": 11, "calls": 20, "sizes": [1, 1000, 40_000, 300_000]}
PUBLIC, HIDDEN, ALSO_HIDDEN = 0, 1, 2  # hosts, and their sites
NONE = {"Q7X2_ADVERTISE": "none"}
SECRET = {"Q7X2_SECRET": "a secret of these tests, which is long"}
FORWARDED = 31000  # a port
RELAY_PORT, STORE_PORT = 29600, 29601
ANOTHER_WAY = pytest.mark.nightly("the same in another way")

pytestmark = pytest.mark.skipif(
    bool(wide.unavailable(nat=True)), reason=str(wide.unavailable(nat=True))
)


@pytest.fixture(scope="module")
def lab() -> Iterator[WideLab]:
    line = Line(rtt="10ms", rate="200mbit")
    with WideLab(WideTopology(sites=3, line=line, nat=(HIDDEN, ALSO_HIDDEN))) as it:
        yield it


@pytest.fixture(scope="module")
def digest(lab: WideLab) -> str:
    """What two ranks compute without NAT between them."""
    with WideJob(lab, hosts=[PUBLIC, PUBLIC]) as job:
        return trained(job)


def trained(job: WideJob) -> str:
    digests = {each.get("digest", str(each)) for each in job.do(do="train", **TRAINING)}
    assert len(digests) == 1, digests
    return digests.pop()


def outside(site: int) -> str:
    """The address that NAT shows."""
    return f"10.77.{site}.253"


@contextlib.contextmanager
def forwarded(lab: WideLab, host: int, ports: Sequence[int]) -> Iterator[None]:
    """These ports of the outside address lead to the host."""
    router = ["ip", "netns", "exec", lab.router(host), "nft"]
    to = lab.topology.address(host)
    rules = [
        "add chain inet lab arriving { type nat hook prerouting priority -100; }",
        *(
            f"add rule inet lab arriving iifname wan tcp dport {port} dnat ip to {to}:{port}"
            for port in ports
        ),
        "insert rule inet lab passing iifname wan ct status dnat accept",
    ]
    call(*router, ";".join(rules))
    try:
        yield
    finally:
        call(*router, "delete chain inet lab arriving")


@contextlib.contextmanager
def relay(lab: WideLab, *options: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """On the public host; where it is."""
    command = [interpreters.python(), "-m", "q7x2", "serve", "--relay", str(RELAY_PORT), *options]
    process = subprocess.Popen(
        [*lab.enter(PUBLIC), *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    assert process.stdout is not None
    try:
        line = ""
        while "relays at" not in line:
            line = process.stdout.readline()
            assert line, "the relay did not start"
        yield f"{lab.topology.address(PUBLIC)}:{RELAY_PORT}"
    finally:
        process.kill()
        process.wait()


def refused(lab: WideLab, hosts: list[int], host_env: dict[int, dict[str, str]]) -> list[str]:
    """What the ranks say as they end."""
    job = WideJob(lab, hosts=hosts, host_env=host_env)
    try:
        for rank in job.ranks:
            rank.process.wait(60)
    finally:
        job.end()
    return ["".join(rank.warnings) for rank in job.ranks]


def test_who_cannot_be_called_calls_others(lab: WideLab, digest: str) -> None:
    with WideJob(lab, hosts=[PUBLIC, HIDDEN], host_env={HIDDEN: NONE}) as job:
        assert [each["paths"] for each in job.facts] == [["many connections"]] * 2
        assert trained(job) == digest
        assert all(each["right"] for each in job.do(do="loop_groups", times=3))
        for size in (1, 300_000):
            assert all(each["right"] for each in job.do(do="messages", size=size))
        job.finish()


@pytest.mark.nightly("the same way, for other jobs")
def test_it_need_not_be_far(lab: WideLab, digest: str) -> None:
    """Near hosts use UCX unless there is NAT between them."""
    env = {"Q7X2_STREAMS": "far", "Q7X2_PROBE": "force"}
    lab.line.change(rtt="0.2ms")
    try:
        with WideJob(lab, hosts=[PUBLIC, HIDDEN], env=env, host_env={HIDDEN: NONE}) as job:
            assert trained(job) == digest
            assert [each["paths"] for each in job.do(do="facts")] == [["many connections"]] * 2
            job.finish()
    finally:
        lab.line.change(rtt="10ms")


@pytest.mark.nightly("the same way, for other jobs")
def test_many_ranks_of_a_host_behind_nat(lab: WideLab) -> None:
    """Also those that are not neighbours in the tree talk to each other, and those of one host."""
    hosts = [PUBLIC, PUBLIC, HIDDEN, HIDDEN]
    with WideJob(lab, hosts=hosts, host_env={HIDDEN: NONE}) as job:
        assert "shared memory" in job.facts[2]["paths"]
        trained(job)
        assert all(each["right"] for each in job.do(do="messages", size=1000))
        job.finish()


def test_a_killed_rank_is_named_and_the_others_go_on(lab: WideLab, tmp_path: pathlib.Path) -> None:
    hosts = [PUBLIC, HIDDEN, HIDDEN]
    with WideJob(lab, hosts=hosts, host_env={HIDDEN: NONE}) as job:
        job.do(do="train", **TRAINING)
        job.start(do="train_until", flag=str(tmp_path / "never"), **TRAINING)
        os.kill(job.pid(1), signal.SIGKILL)
        for said in job.answers([0, 2], patience=60):
            assert said.get("raised") == "DistBackendError", said
            assert "rank 1 (pid" in said["text"], said
        shrunk = job.do([0, 2], do="shrink", dead=[1])
        assert [each.get("sum") for each in shrunk] == [2.0] * 2, shrunk


@pytest.mark.parametrize("how", ["reset", pytest.param("another address", marks=ANOTHER_WAY)])
def test_a_broken_connection_is_made_again(
    lab: WideLab, digest: str, tmp_path: pathlib.Path, how: str
) -> None:
    """NAT forgets its connections if its own address changes, as at home in the night."""
    flag = tmp_path / "over"
    with WideJob(lab, hosts=[PUBLIC, HIDDEN], host_env={HIDDEN: NONE}) as job:
        job.start(do="train_until", flag=str(flag), **TRAINING)
        with contextlib.ExitStack() as until_the_end:
            if how == "reset":
                assert reset(job, HIDDEN) > 0
            else:
                until_the_end.enter_context(another_address(lab, HIDDEN))
            flag.touch()
            answers = job.answers()
        assert [each.get("digests") for each in answers] == [[digest]] * 2, answers
        job.finish()


@contextlib.contextmanager
def another_address(lab: WideLab, site: int) -> Iterator[None]:
    """The kernel forgets all connections that had the first one."""
    router, first, second = lab.router(site), f"{outside(site)}/24", f"10.77.{site}.252/32"
    ip(router, f"address add {second} dev wan", f"address del {first} dev wan")
    try:
        yield
    finally:
        ip(router, f"address add {first} dev wan noprefixroute", f"address del {second} dev wan")


@pytest.mark.nightly("the same way, for other jobs")
def test_jobs_on_both_sides_of_nat_make_a_group_by_handles(lab: WideLab) -> None:
    """In this order there are pairs of which only the one that others cannot call is called."""
    at_home = {**NONE, "MASTER_ADDR": lab.topology.address(HIDDEN)}
    with (
        WideJob(lab, hosts=[PUBLIC] * 2) as one,
        WideJob(lab, hosts=[HIDDEN] * 2, env=at_home) as other,
    ):
        handles = [[each["handle"] for each in job.do(do="handle")] for job in (one, other)]
        order = [handle for pair in zip(*handles, strict=True) for handle in pair]
        for job in (one, other):
            job.start(do="reconfigure", handles=order)
        answers = [each for job in (one, other) for each in job.answers()]
        assert [each.get("sums") for each in answers] == [[6.0] * 4] * 4, answers


@pytest.mark.parametrize(
    "with_port", [True, pytest.param(False, marks=ANOTHER_WAY)], ids=["a port", "all ports"]
)
def test_a_port_outside_leads_to_a_rank(lab: WideLab, digest: str, with_port: bool) -> None:
    """Both sites have NAT; the one with rank 0 lets two ports through, or a range."""
    store = 29700 + with_port
    at_home = {
        "Q7X2_ADVERTISE": outside(HIDDEN) + f":{FORWARDED}" * with_port,
        "MASTER_ADDR": lab.topology.address(HIDDEN),
        "MASTER_PORT": str(store),
        **({} if with_port else {"Q7X2_PORT_RANGE": f"{FORWARDED}-{FORWARDED + 7}"}),
    }
    elsewhere = {**NONE, "MASTER_ADDR": outside(HIDDEN), "MASTER_PORT": str(store)}
    ports = [store, *range(FORWARDED, FORWARDED + (1 if with_port else 8))]
    with (
        forwarded(lab, HIDDEN, ports),
        WideJob(
            lab,
            hosts=[HIDDEN, ALSO_HIDDEN],
            host_env={HIDDEN: at_home, ALSO_HIDDEN: elsewhere},
        ) as job,
    ):
        assert trained(job) == digest
        assert reset(job, ALSO_HIDDEN) > 0
        assert trained(job) == digest
        job.finish()


def test_two_hosts_behind_nat_meet_at_a_relay(
    lab: WideLab, digest: str, tmp_path: pathlib.Path
) -> None:
    """It holds the store, too, so no rank is on a host that others must reach."""
    with relay(lab, "--store", str(STORE_PORT), env=SECRET) as place:
        env = {
            **NONE,
            **SECRET,
            "Q7X2_RELAY": place,
            "MASTER_PORT": str(STORE_PORT),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        with WideJob(lab, hosts=[HIDDEN, ALSO_HIDDEN], env=env) as job:
            assert trained(job) == digest
            assert all(each["right"] for each in job.do(do="messages", size=300_000))
            flag = tmp_path / "over"
            job.start(do="train_until", flag=str(flag), **TRAINING)
            call(*lab.enter(HIDDEN), "ss", "-K", "-tn", f"dport = :{RELAY_PORT}")
            flag.touch()
            answers = job.answers()
            assert [each.get("digests") for each in answers] == [[digest]] * 2, answers
            os.kill(job.pid(1), signal.SIGKILL)
            (said,) = job.do([0], do="broadcast", root=1)
            assert "rank 1 (pid" in said.get("text", ""), said


FAILURES = [
    pytest.param({}, "or both need Q7X2_RELAY", id="no relay"),
    pytest.param(
        {"Q7X2_RELAY": "10.77.0.1:9"},
        "the relay 10.77.0.1 port 9",
        id="not there",
        marks=ANOTHER_WAY,
    ),
]


@pytest.mark.parametrize(("env", "text"), FAILURES)
def test_two_hosts_behind_nat_that_cannot_meet(
    lab: WideLab, env: dict[str, str], text: str
) -> None:
    """The others reach both, so it shows as soon as the two have to talk."""
    said = failed_training(lab, {**NONE, **env})
    assert any(text in each for each in said), said


@pytest.mark.nightly("the same way, for other jobs")
def test_a_relay_of_another_job_is_of_no_use(lab: WideLab) -> None:
    with relay(lab, env={"Q7X2_SECRET": "the secret of another job"}) as place:
        said = failed_training(lab, {**NONE, **SECRET, "Q7X2_RELAY": place})
    assert any(f"the relay 10.77.0.1 port {RELAY_PORT}" in each for each in said), said


def failed_training(lab: WideLab, env: dict[str, str]) -> list[str]:
    """What all ranks say, two of which have NAT on both sides; `env`: of these."""
    hosts = [PUBLIC, HIDDEN, ALSO_HIDDEN]
    host_env = dict.fromkeys(hosts[1:], env)
    host_env[PUBLIC] = {key: value for key, value in env.items() if key == "Q7X2_SECRET"}
    with WideJob(lab, hosts=hosts, host_env=host_env) as job:
        said = job.do(do="train", **TRAINING)
    assert all(each.get("raised") == "DistBackendError" for each in said), said
    return [each["text"] for each in said]


IN_CPP = pytest.mark.nightly("advertised_test.cpp reads such values")


@pytest.mark.parametrize(
    ("env", "text"),
    [
        pytest.param(
            {"Q7X2_ADVERTISE": "none", "Q7X2_STREAMS": "0"},
            "Q7X2_STREAMS is 0 on rank 1",
            id="no streams",
        ),
        pytest.param(
            {"Q7X2_ADVERTISE": "203.0.113.5:x"}, "'x' is no port", id="no port", marks=IN_CPP
        ),
        pytest.param(
            {"Q7X2_ADVERTISE": "[fd77::1"},
            "its brackets do not match",
            id="no address",
            marks=IN_CPP,
        ),
        pytest.param(
            {"Q7X2_RELAY": "10.77.0.1"},
            "it has no port",
            id="a relay without a port",
        ),
    ],
)
def test_a_wrong_value_is_an_error_at_once(lab: WideLab, env: dict[str, Any], text: str) -> None:
    said = refused(lab, [PUBLIC, HIDDEN], {HIDDEN: env})
    assert any(text in each for each in said), said


def test_info_shows_how_each_pair_is_connected(lab: WideLab) -> None:
    """Rates are those of the lab's lines, as near as a few messages tell."""
    said = peers_of(lab, {PUBLIC: {}, HIDDEN: NONE})
    (pair,) = said
    assert pair["ranks"] == [0, 1]
    assert pair["path"] == "many connections"
    assert pair["encrypted"] is True
    assert pair["connections"] >= 2
    assert 0.010 <= pair["round_trip"] < 0.2
    assert 1e6 < pair["rate"] < 26e6
    assert 0 <= pair["sent_again"] < 1


def peers_of(lab: WideLab, host_env: dict[int, dict[str, str]]) -> list[dict[str, Any]]:
    ranks = [
        subprocess.Popen(
            [*lab.enter(host), interpreters.python(), "-m", "q7x2", "info", "--peers", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(host_env)),
                "MASTER_ADDR": lab.topology.address(PUBLIC),
                "MASTER_PORT": "29750",
                "OMP_NUM_THREADS": "1",
                **env,
            },
        )
        for rank, (host, env) in enumerate(host_env.items())
    ]
    try:
        texts = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), texts
    pairs: list[dict[str, Any]] = json.loads(texts[0])
    return pairs
