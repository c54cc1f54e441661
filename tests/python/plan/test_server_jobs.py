"""What servers do with little memory, and for several jobs."""

from __future__ import annotations

import pathlib
import signal
import sys
from typing import Any

import harness
import interpreters
import pytest
import q7x2
import server_process
import torch.distributed as dist
from server_process import ENV, NONE, await_file, check_call, run

pytestmark = pytest.mark.beyond("gloo", "it has no servers")


SHORT, LONG = 1_000, 1_000_000  # elements
CALLS = 5  # of each length


def body_little_memory(port: int) -> None:
    server_process.join(port, 3)
    with q7x2.collectives.algorithm("servers"):
        for salt in range(2):
            check_call(3, salt, SHORT)
            check_call(3, salt, LONG)
    (server,) = q7x2.describe().servers
    assert (server["calls"], server["declined"], server["serves"]) == (2, 2, True)
    assert "2 calls were served, 2 declined" in str(q7x2.describe())
    dist.destroy_process_group()


def test_calls_that_find_too_little_memory_are_made_by_the_ranks(job, new_pool) -> None:
    server = job.server(None, "--memory", "50K")
    run(new_pool(3, env=ENV), body_little_memory, port=job.port)
    server.await_words("it had too few slots for 2 of its calls")


def body_one_of_two_jobs(port: int, shared: str, name: str) -> dict[str, Any]:
    server_process.join(port, 2)
    with q7x2.collectives.algorithm("servers"):
        for salt in range(CALLS):
            check_call(2, salt, SHORT)
            check_call(2, salt, LONG)
        if name == "b":
            await_file(f"{shared}/a has ended")
            for salt in range(CALLS):
                check_call(2, salt, SHORT)
    (server,) = q7x2.describe().servers
    dist.destroy_process_group()
    return dict(server)


def test_two_jobs_share_a_server(tmp_path, new_pool, shared) -> None:
    jobs = {}
    for name in "ab":
        (tmp_path / name).mkdir()
        jobs[name] = server_process.Job(tmp_path / name)
    places = [f"{server_process.HOST}:{job.port}" for job in jobs.values()]
    arguments = ["--job", places[0], "--job", places[1], "--memory", "16M", "--name", "both"]
    server = server_process.ServerProcess(arguments, tmp_path / "log", python=interpreters.python())
    try:
        for place in places:
            server.await_words(f"q7x2 serve [{place}]: is server 1 ('both') of the job at {place}")
        pools = {name: new_pool(2, env=ENV) for name in jobs}
        for name, pool in pools.items():
            pool.start(body_one_of_two_jobs, NONE, port=jobs[name].port, shared=shared, name=name)
        found = {}
        for name in "ab":
            outcomes = pools[name].collect()
            text = "\n".join(o.describe() for o in outcomes)
            assert [o.kind for o in outcomes] == ["ok", "ok"], text
            found[name] = outcomes[0].value
            jobs[name].close_store()
            server.await_words(f"q7x2 serve [{places['ab'.index(name)]}]: ends: the job has ended")
            pathlib.Path(f"{shared}/{name} has ended").touch()
        assert server.exit_code() == 0
        assert found["a"]["calls"] + found["a"]["declined"] == 2 * CALLS
        assert found["b"]["calls"] + found["b"]["declined"] == 3 * CALLS
        assert found["a"]["pid"] != found["b"]["pid"]
    finally:
        server.end()
        for each in jobs.values():
            each.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_servers_of_all_jobs_end_with_the_command(tmp_path, job, number) -> None:
    other = server_process.Job(tmp_path / "other")
    places = [f"{server_process.HOST}:{each.port}" for each in (job, other)]
    server = server_process.ServerProcess(
        ["--job", places[0], "--job", places[1]],
        tmp_path / "log",
        # A copy would not notice the end of the command, which is not its parent.
        python=interpreters.python() if number == signal.SIGTERM else sys.executable,
    )
    try:
        for place in places:
            server.await_words(f"[{place}]: is server")
        server.signal(number)
        assert server.exit_code() == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        for place in places:
            harness.wait_until(
                lambda end=f"[{place}]: ends: was told to stop": end in server.said()
            )
    finally:
        other.close()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "expected --master-addr and --master-port, or --job HOST:PORT"),
        (["--master-addr", "a"], "expected both --master-addr and --master-port"),
        (["--job", "a:1", "--job", "a:1"], "expected different jobs: one is named twice"),
    ],
)
def test_jobs_are_named_in_full(arguments, problem, capfd) -> None:
    from q7x2.cli import main

    assert main(["serve", *arguments]) == 1
    assert problem in capfd.readouterr().err


def test_a_job_is_a_host_and_a_port(capfd) -> None:
    from q7x2.cli import main

    with pytest.raises(SystemExit):
        main(["serve", "--job", "here"])
    assert "expected HOST:PORT, not 'here'" in capfd.readouterr().err
