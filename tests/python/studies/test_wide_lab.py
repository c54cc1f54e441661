"""The lab with distance: what its lines do to packets, counted by the wire and by a receiver."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT
from wide_packets import PORT, python, send

from tests.lab import LabError, Line, WideLab, WideTopology, namespaces, wide
from tests.lab.hosts import STATE, remove_stale
from tests.lab.processes import RanksFailed

QUIET = Line(rate="unshaped", rtt="2ms")

needs_lab = pytest.mark.skipif(bool(wide.unavailable()), reason=str(wide.unavailable()))
needs_nat = pytest.mark.skipif(bool(wide.unavailable(nat=True)), reason="nft not found")


@pytest.fixture(scope="module")
def running() -> Iterator[WideLab]:
    with WideLab(WideTopology(line=QUIET)) as lab:
        yield lab


@pytest.fixture
def lab(running: WideLab) -> WideLab:
    """Two sites with a host each, and a line without losses."""
    running.line.heal()
    running.line.change(**asdict(QUIET))
    return running


def nightly(value: object) -> Any:
    return pytest.param(value, marks=pytest.mark.nightly("the same with another signal"))


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"rate": "-1mbit"}, "rate: a rate is a number above 0"),
        ({"flow_rate": "fast"}, "flow_rate: a rate is a number above 0"),
        ({"rtt": "-5ms"}, "rtt: a time is a number and us, ms or s"),
        ({"rtt": "100"}, "rtt: a time is a number and us, ms or s"),
        ({"jitter": "2min"}, "jitter: a time is"),
        ({"queue": "61s"}, "queue: a time is .* 60 s at most"),
        ({"loss": "101%"}, "loss: a share is from 0% to 100%"),
        ({"loss": "0.1"}, "loss: a share is from 0% to 100%"),
        ({"reorder": "-1%"}, "reorder: a share"),
        ({"duplicate": "all"}, "duplicate: a share"),
    ],
)
def test_a_wrong_line_says_what_is_expected(arguments: dict[str, str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Line(**arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"sites": 1}, "has 2 to 100 sites, not 1"),
        ({"hosts_per_site": 0}, "2 sites have 1 to 100 hosts each, not 0"),
        ({"sites": 4, "hosts_per_site": 51}, "4 sites have 1 to 50 hosts each, not 51"),
        ({"near": "0mbit"}, "a rate is a number above 0"),
        ({"congestion": "quick"}, "congestion controls are .*; got 'quick'"),
        ({"nat": (2,)}, r"the sites are 0..1; got nat \[2\]"),
        ({"seed": -1}, "a seed is 0 or more"),
    ],
)
def test_wrong_sites_say_what_is_expected(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        WideTopology(**arguments)


def test_hosts_fill_the_sites_in_order() -> None:
    topology = WideTopology(sites=2, hosts_per_site=2, ipv6=True, seed=7)
    assert [topology.site_of(host) for host in range(4)] == [0, 0, 1, 1]
    assert topology.address(3) == "fd77:0:0:1::2"
    assert WideTopology(sites=2, hosts_per_site=2).address(2) == "10.77.1.1"
    assert topology.describe() == (
        "2 sites x 2 hosts, rate 200mbit, rtt 100ms, cubic, seed 7, IPv6 only"
    )


def test_a_run_with_a_seed_repeats_its_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("Q7X2_RANDOM_SEED", "123")
    assert WideTopology().seed == 123
    monkeypatch.delenv("Q7X2_RANDOM_SEED")
    assert len({WideTopology().seed for _ in range(20)}) > 1


@needs_lab
def test_wrong_changes_say_what_is_expected(lab: WideLab) -> None:
    for call, expected in (
        (lambda: lab.line.change(loss="200%"), "loss: a share"),
        (lambda: lab.line.cut((0, 2)), r"two different sites of 0..1; got \[0, 2\]"),
        (lambda: lab.line.cut((1, 1)), "two different sites"),
        (lambda: lab.line.cut(one_way=True), "one way needs two sites"),
        (lambda: lab.line.flap("0s", "1s"), "times above 0"),
    ):
        with pytest.raises(ValueError, match=expected):
            call()


def test_a_machine_without_tun_says_so() -> None:
    asks = python("from tests.lab import wide; print(wide.unavailable())")
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/net && exec "$@"', "sh"]
    if reason := namespaces.unavailable():
        pytest.skip(reason)
    said = subprocess.run([*hidden, *asks], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "needs the device /dev/net/tun: No such file" in said.stdout


# ---- packets -------------------------------------------------------------------------------------


@needs_lab
def test_a_quiet_line_delivers_everything_in_order(lab: WideLab) -> None:
    lab.line.change(jitter="3ms")
    came, counts = send(lab, 500)
    assert came == list(range(500))
    assert counts.delivered_bytes == 500 * 100


@needs_lab
def test_the_share_of_losses_is_right(lab: WideLab) -> None:
    lab.line.change(loss="10%")
    came, counts = send(lab, 4000)
    assert len(came) == counts.delivered == 4000 - counts.lost
    assert 300 < counts.lost < 500  # five standard deviations to each side


@needs_lab
def test_the_seed_decides_who_is_lost(lab: WideLab) -> None:
    lossy = replace(QUIET, loss="30%")

    def survivors() -> list[int]:
        with WideLab(WideTopology(line=lossy, seed=1_000_000)) as one:  # no seed that is drawn
            return send(one, 200)[0]

    lab.line.change(loss="30%")
    first = survivors()
    assert first == survivors()
    assert first != send(lab, 200)[0]


@needs_lab
def test_duplicates_arrive_twice(lab: WideLab) -> None:
    lab.line.change(duplicate="10%")
    came, counts = send(lab, 1000)
    assert sorted(set(came)) == list(range(1000))
    assert len(came) - 1000 == counts.duplicated > 0


@needs_lab
def test_reordered_packets_are_overtaken(lab: WideLab) -> None:
    lab.line.change(reorder="5%")
    came, counts = send(lab, 1000)
    assert sorted(came) == list(range(1000))
    assert 0 < sum(a > b for a, b in pairwise(came)) <= counts.reordered


@needs_lab
def test_a_queue_is_bounded(lab: WideLab) -> None:
    lab.line.change(rate="1mbit", queue="100ms")
    came, counts = send(lab, 100, size=1000)
    # Each takes 8 ms, so the first 13 do not wait for longer; others find room while it is sent.
    assert 13 <= len(came) <= 50
    assert counts.overflowed == 100 - len(came)


@needs_lab
def test_each_flow_has_a_rate_and_a_queue(lab: WideLab) -> None:
    lab.line.change(flow_rate="1mbit", queue="100ms")
    came, _ = send(lab, 200, size=1000, flows=2)
    for flow in range(2):
        assert 13 <= sum(number % 2 == flow for number in came) <= 50


@needs_lab
def test_a_line_is_cut_and_healed(lab: WideLab) -> None:
    lab.line.cut((1, 0), one_way=True)
    came, counts = send(lab, 20)
    assert came == []
    assert counts.cut_off == 20
    lab.line.heal()
    lab.line.cut((0, 1), one_way=True)  # the other direction
    assert send(lab, 20)[0] == list(range(20))


@needs_lab
def test_a_line_flaps_until_it_heals(lab: WideLab) -> None:
    lab.line.flap(up="50ms", down="50ms")
    came, counts = send(lab, 200, pause=0.002)
    assert 0 < len(came) < 200
    assert counts.cut_off == 200 - len(came)
    lab.line.heal()
    assert len(send(lab, 20)[0]) == 20


# ---- connections ---------------------------------------------------------------------------------

# Rank 0 accepts a connection and echoes; rank 1 prints who it is to rank 0, TCP's congestion
# control, and the shortest time of 10 rounds.
ECHO = """
    import os, socket, time
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if os.environ["RANK"] == "0":
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        with socket.create_server(address, family=family) as server:
            connection, peer = server.accept()
            connection.sendall(peer[0].ljust(100).encode())
            while data := connection.recv(100):
                connection.sendall(data)
    else:
        while True:
            try:
                connection = socket.create_connection(address)
                break
            except ConnectionRefusedError:
                pass
        control = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        print(connection.recv(100).decode().strip())
        print(control.rstrip(bytes(1)).decode())
        times = []
        for _ in range(10):
            begin = time.monotonic()
            connection.sendall(b"x")
            connection.recv(1)
            times.append(time.monotonic() - begin)
        print(min(times))
"""


def echo(lab: WideLab) -> tuple[str, str, float]:
    peer, control, seconds = lab.run(python(ECHO), timeout_s=60).ranks[1].output.split()
    return peer, control, float(seconds)


@needs_lab
def test_no_answer_comes_early(lab: WideLab) -> None:
    lab.line.change(rtt="30ms")
    peer, control, seconds = echo(lab)
    assert peer == "10.77.1.1"
    assert control == "cubic"
    assert seconds >= 0.03


@needs_lab
def test_hosts_have_only_ipv6() -> None:
    with WideLab(WideTopology(line=QUIET, ipv6=True, congestion="reno")) as lab:
        assert echo(lab)[:2] == ("fd77:0:0:1::1", "reno")
        asked = lab.run(["ip", "-4", "-o", "address", "show", "scope", "global"])
        assert [rank.output for rank in asked.ranks] == ["", ""]
        assert send(lab, 20)[0] == list(range(20))


@needs_lab
@needs_nat
def test_behind_a_masquerade_hosts_reach_others_and_are_not_reached() -> None:
    with WideLab(WideTopology(line=QUIET, nat=(1,))) as lab:
        assert echo(lab)[0] == "10.77.1.253"
        serve = f"""
            import socket
            with socket.create_server(("", {PORT})) as server:
                print("ready", flush=True)
                while True:
                    server.accept()[0].close()
        """
        reach = f"""
            import socket
            try:
                socket.create_connection(("{lab.topology.address(1)}", {PORT}), timeout=1).close()
                print("reached")
            except TimeoutError:
                print("not reached")
        """
        server = subprocess.Popen(
            [*lab.enter(1), *python(serve)], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        said = [
            subprocess.run([*lab.enter(host), *python(reach)], capture_output=True, text=True)
            for host in (1, 0)
        ]
        server.kill()
        server.communicate()
        assert [each.stdout for each in said] == ["reached\n", "not reached\n"]


@pytest.mark.nightly("times of a quiet machine")
@needs_lab
@pytest.mark.parametrize(("rtt", "expected"), [("20ms", 0.02), ("100ms", 0.1)])
def test_an_answer_takes_the_round_trip_time(lab: WideLab, rtt: str, expected: float) -> None:
    lab.line.change(rtt=rtt)
    assert echo(lab)[2] == pytest.approx(expected, rel=0.1)


# ---- life ----------------------------------------------------------------------------------------


def wires(name: str) -> list[int]:
    """The wire programs of the lab of that name."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if f"/{name}.wire".encode() in command:
            found.append(int(entry.name))
    return found


@needs_lab
def test_nothing_is_left() -> None:
    with WideLab(WideTopology(hosts_per_site=2, line=QUIET)) as lab:
        assert len(namespaces.labs()[lab.name]) == 6
        assert len(wires(lab.name)) == 1
        with pytest.raises(RanksFailed, match="rank 3 failed first"):
            lab.run(["sh", "-c", "[ $RANK != 3 ]"])
    assert lab.name not in namespaces.labs()
    assert not wires(lab.name)
    assert not list(STATE.glob(f"{lab.name}.*"))
    with pytest.raises(LabError, match="the lines of the lab do not answer"):
        lab.line.counts()


@needs_lab
@pytest.mark.parametrize("how", [signal.SIGINT, nightly(signal.SIGTERM), nightly(signal.SIGKILL)])
def test_a_command_that_is_interrupted_leaves_nothing(how: signal.Signals) -> None:
    options = ["--hosts", "2x1", "--rtt", "10ms", "--loss", "1%", "--seed", "5"]
    command = [sys.executable, "-m", "tests.lab", "wan", *options, "sleep", "1002"]
    launcher = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert launcher.stdout is not None
    said = launcher.stdout.readline()
    assert "2 sites x 1 hosts, rate 200mbit, rtt 10ms, loss 1%, cubic, seed 5" in said
    name = said.partition(":")[0]

    def change(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "tests.lab", "line", "--lab", name, *arguments]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True)

    try:
        if how == signal.SIGINT:
            assert change("--between", "0:1", "cut").returncode == 0
            assert change("change", "--rtt", "20ms").returncode == 0
            assert change("flap", "1s", "1s").returncode == 0
            assert "site 1 to 0: entered 0, delivered 0" in change("counts").stdout
            assert "a time is a number" in change("change", "--rtt", "-1").stderr
        launcher.send_signal(how)
        launcher.communicate(timeout=60)
    finally:
        launcher.kill()
        launcher.communicate()
    if how == signal.SIGKILL:
        assert name in remove_stale()
    assert name not in namespaces.labs()
    assert not wires(name)
    assert not list(STATE.glob(f"{name}.*"))
