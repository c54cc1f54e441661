"""The virtual-host lab and the benchmark jobs that run in it: tiny runs on a tiny network."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import ROOT, wait_until

from benchmarks.harness import launch
from benchmarks.harness.ops import OPS
from tests import lab as lab_package
from tests.lab import Lab, Link, Topology, namespaces
from tests.lab.hosts import STATE, remove_stale
from tests.lab.processes import RanksFailed
from tests.lab.topology import bits_per_second

RATE = "100mbit"
PAYLOAD = 4 << 20

needs_lab = pytest.mark.skipif(
    lab_package.unavailable() is not None, reason=str(lab_package.unavailable())
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(Topology(hosts=2, rate=RATE)) as it:
        yield it


def python(text: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


def command_line(pid: int) -> str:
    """Empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def test_a_topology_knows_its_racks() -> None:
    topology = Topology(hosts=8, rate="200mbit", racks=2, uplink="50mbit")
    assert [topology.rack_of(host) for host in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert topology.interleaved() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert Topology(hosts=2).blocks(2) == [0, 0, 1, 1]
    assert Topology(hosts=2).interleaved(2) == [0, 1, 0, 1]
    assert Topology.from_json(topology.to_json()) == topology
    assert bits_per_second("1.5gbit") == 1.5e9


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"hosts": 0}, "1 to 200 hosts"),
        ({"hosts": 3, "racks": 2, "uplink": "1gbit"}, "do not divide into 2 racks"),
        ({"racks": 2}, "uplink rate belongs to more than one rack"),
        ({"racks": 0}, "expected at least 1 rack, got 0"),
        ({"racks": -2, "uplink": "1gbit"}, "expected at least 1 rack, got -2"),
        ({"rate": "fast"}, "a rate is a number above 0"),
        ({"rate": "0mbit"}, "a rate is a number above 0"),
        ({"racks": 2, "uplink": "0mbit"}, "a rate is a number above 0"),
        ({"links": (Link(0, 4, "1gbit"),)}, "two different hosts of 0..3"),
    ],
)
def test_a_wrong_topology_says_what_is_expected(arguments: dict, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Topology(**arguments)


@pytest.mark.parametrize("ranks", [0, -1])
def test_a_job_has_ranks_on_each_host(ranks: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1 rank per host"):
        Topology().blocks(ranks)


@needs_lab
def test_hosts_share_a_network_and_nothing_else(lab: Lab) -> None:
    (Path("/dev/shm") / f"{lab.name}").touch()
    try:
        result = lab.run(
            python(
                """
                import os, socket
                rank = int(os.environ["RANK"])
                port = int(os.environ["MASTER_PORT"])
                assert socket.gethostname() == f"h{rank}"
                assert socket.gethostbyname(f"h{rank}") == f"10.77.0.{rank + 1}"
                assert os.listdir("/dev/shm") == [], "another host's shared memory"
                assert len([p for p in os.listdir("/proc") if p.isdigit()]) < 6
                if rank == 0:
                    with socket.create_server(("", port)) as server:
                        connection, peer = server.accept()
                        print(peer[0])
                else:
                    while True:
                        try:
                            socket.create_connection((os.environ["MASTER_ADDR"], port)).close()
                            break
                        except ConnectionRefusedError:
                            pass
                """
            ),
            timeout_s=20,
        )
    finally:
        (Path("/dev/shm") / f"{lab.name}").unlink()
    assert result.ranks[0].output == "10.77.0.2\n"
    assert all(traffic.sent > 0 and traffic.received > 0 for traffic in result.traffic)


@needs_lab
def test_a_transfer_has_the_rate_of_its_link(lab: Lab) -> None:
    result = lab.run(
        python(
            f"""
            import os, socket, time
            address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            if os.environ["RANK"] == "0":
                with socket.create_server(address) as server:
                    connection, _ = server.accept()
                    start, got = time.monotonic(), 0
                    while chunk := connection.recv(1 << 20):
                        got += len(chunk)
                    assert got == {PAYLOAD}
                    print(got * 8 / (time.monotonic() - start))
            else:
                while True:
                    try:
                        connection = socket.create_connection(address)
                        break
                    except ConnectionRefusedError:
                        pass
                connection.sendall(bytes({PAYLOAD}))
            """
        ),
        timeout_s=20,
    )
    goodput = float(result.ranks[0].output)
    # The buckets at both ends pass 128 KiB each at once, so a short transfer may seem faster.
    assert 0.5 * bits_per_second(RATE) < goodput < 1.15 * bits_per_second(RATE)
    assert result.traffic[1].sent >= PAYLOAD
    assert result.traffic[0].received >= PAYLOAD


@needs_lab
def test_a_nic_may_get_another_rate(lab: Lab) -> None:
    def rates() -> set[str]:
        text = namespaces.call("tc", "-n", lab.switch, "qdisc", "show", "dev", "h1")
        text += namespaces.call("tc", "-n", f"{lab.name}-h1", "qdisc", "show", "dev", "eth0")
        return {word for before, word in itertools.pairwise(text.split()) if before == "rate"}

    assert rates() == {"100Mbit"}
    lab.set_rate(1, "20mbit")
    assert rates() == {"20Mbit"}
    lab.set_rate(1, RATE)
    with pytest.raises(ValueError, match="a rate is a number above 0"):
        lab.set_rate(1, "fast")


@needs_lab
def test_ranks_are_placed_and_numbered(lab: Lab) -> None:
    result = lab.run(
        ["sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE $(hostname)"],
        ranks_per_host=2,
        placement=[1, 0, 0, 1],
    )
    assert [rank.output.strip() for rank in result.ranks] == [
        "0 0 4 h1",
        "1 0 4 h0",
        "2 1 4 h0",
        "3 1 4 h1",
    ]


@needs_lab
def test_a_deadline_leaves_nobody_behind(lab: Lab) -> None:
    with pytest.raises(RanksFailed, match="not finished after 1 s"):
        lab.run(["sh", "-c", "sleep 1000 & sleep 1000"], timeout_s=1)
    # What remains is each host's number 1, its sleep, and the holder outside.
    names = [
        command_line(pid)
        for namespace in namespaces.labs()[lab.name]
        for pid in namespaces.pids(namespace)
    ]
    assert not [name for name in names if name.startswith("sleep 1000")]


@needs_lab
def test_a_failing_rank_is_named(lab: Lab) -> None:
    with pytest.raises(RanksFailed, match="rank 1 failed first") as failure:
        lab.run(["sh", "-c", "echo here is $RANK; exit $RANK"])
    assert [result.returncode for result in failure.value.results] == [0, 1]
    assert "here is 1" in str(failure.value)


@needs_lab
def test_a_crashed_lab_is_removed_by_the_next() -> None:
    crash = python(
        """
        import os, signal
        from tests.lab import Lab, Topology
        lab = Lab(Topology(hosts=2))
        lab.up()
        print(lab.name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run(crash, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    name = done.stdout.strip()
    left = [pid for namespace in namespaces.labs()[name] for pid in namespaces.pids(namespace)]
    assert left
    assert name in remove_stale()
    assert name not in namespaces.labs()
    assert not list(STATE.glob(f"{name}.*"))
    assert all(namespaces.start_time(pid) is None for pid in left)


@needs_lab
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_die_with_their_launcher(how: signal.Signals) -> None:
    launcher = subprocess.Popen(
        python(
            """
            from tests.lab import Lab, Topology
            with Lab(Topology(hosts=2)) as lab:
                print(lab.name, flush=True)
                lab.run(["sleep", "1001"], on_line=print)
            """
        ),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    name = launcher.stdout.readline().strip()

    def sleeping() -> int:
        pids = [pid for one in namespaces.labs().get(name, []) for pid in namespaces.pids(one)]
        return sum(command_line(pid).startswith("sleep 1001") for pid in pids)

    try:
        wait_until(lambda: sleeping() == 2)
        launcher.send_signal(how)
        launcher.wait()
        wait_until(lambda: sleeping() == 0)
    finally:
        launcher.kill()
        launcher.wait()
    remove_stale()
    assert name not in namespaces.labs()


@needs_lab
def test_down_leaves_nothing() -> None:
    owner = subprocess.Popen(["sleep", "60"])
    try:
        lab = Lab(Topology(hosts=4, racks=2, uplink=RATE, links=(Link(0, 3, RATE),)), owner.pid)
        lab.up()
        assert len(namespaces.labs()[lab.name]) == 5
        assert Lab.attach(lab.name).topology == lab.topology
        lab.down()
        assert lab.name not in namespaces.labs()
        assert not list(STATE.glob(f"{lab.name}.*"))
    finally:
        owner.kill()
        owner.wait()


@pytest.mark.skipif(os.geteuid() == 0, reason="says what it needs only when it is not root")
def test_without_root_the_lab_says_so() -> None:
    with pytest.raises(lab_package.LabError, match="needs root"):
        Lab(Topology()).up()


@pytest.mark.nightly("runs a benchmark; what it measures has tests of its own")
def test_every_collective_is_measured_and_checked() -> None:
    job = launch.Job(tuple(OPS), (4096,), ("gloo", "gloo"), 2, blocks=2, block_seconds=0.005)
    cells = launch.run(job)
    assert [cell["op"] for cell in cells] == list(OPS)
    for cell in cells:
        assert list(cell["backends"]) == ["gloo", "gloo#2"]
        for figures in cell["backends"].values():
            assert 0 < figures["min"] <= figures["median"] <= figures["p99"]
            assert len(figures["block_medians"]) == 2
            assert figures["cpu_seconds"] > 0


@pytest.mark.nightly("runs a benchmark; what it measures has tests of its own")
def test_an_explained_job_compares_algorithms_of_one_group() -> None:
    labels = ("q7x2", "q7x2:ring", "q7x2:direct")
    job = launch.Job(
        ("all_reduce", "all_gather"),
        (4096,),
        labels,
        2,
        blocks=2,
        block_seconds=0.005,
        explained=True,
    )
    for cell in launch.run(job):
        assert list(cell["backends"]) == list(labels)
        assert cell["history"]["collective"] == cell["op"]
        assert cell["history"]["bytes"] == (4096 if cell["op"] == "all_reduce" else 2048)
        assert cell["history"]["calls"] >= 50
        assert cell["history"]["candidates"]


@pytest.mark.usefixtures("copies")
@needs_lab
def test_a_collective_crosses_the_network() -> None:
    job = launch.Job(
        *(("all_reduce", "all_to_all"), (1 << 18,), ("gloo",), 2),
        blocks=1,
        block_seconds=0.01,
        topology=Topology(hosts=2),
    )
    cells = launch.run(job)
    for cell in cells:
        figures = cell["backends"]["gloo"]
        assert figures["bytes_required"] >= 1 << 18
        assert figures["bytes_sent"] < 1.5 * figures["bytes_required"]
        figures["bytes_sent"] /= 2
        with pytest.raises(launch.TrafficError, match="left the hosts"):
            launch.assert_traffic(cell)
