"""Servers that come late, leave and die, and groups that follow others."""

from __future__ import annotations

import pathlib
import random
import signal
import time
from typing import Any

import harness
import pytest
import q7x2
import server_process
import torch
import torch.distributed as dist
from deadlines import NEVER
from pairs import nightly
from seeds import seed
from server_process import ENV, NONE, await_file, check_call, served_calls
from values import assert_bits, integers, meet

pytestmark = pytest.mark.beyond("gloo", "it has no servers")


def await_groups_without_servers(shared: str, world_size: int) -> None:
    """A server that starts before would serve them."""
    for rank in range(world_size):
        await_file(f"{shared}/alone.{rank}")


def body_late_server(port: int, shared: str) -> None:
    server_process.join(port, 2)
    assert q7x2.describe().servers == []
    pathlib.Path(f"{shared}/alone.{dist.get_rank()}").touch()
    with q7x2.collectives.algorithm("servers"):
        check_call(2, salt=0)
        await_file(f"{shared}/server")
        late = dist.new_group()
        check_call(2, salt=1, group=late)
        check_call(2, salt=2)
    assert served_calls(late) == 1
    assert served_calls() == 0
    dist.destroy_process_group()


def test_the_next_group_has_a_late_server(job, new_pool, shared) -> None:
    pool = new_pool(2, env=ENV)
    pool.start(body_late_server, NONE, port=job.port, shared=shared)
    await_groups_without_servers(shared, 2)
    job.server()
    pathlib.Path(f"{shared}/server").touch()
    outcomes = pool.collect()
    assert [o.kind for o in outcomes] == ["ok"] * 2, "\n".join(o.describe() for o in outcomes)


def body_successors(port: int, shared: str) -> None:
    """A group without servers, one after it that has one, and one whose server has died."""
    server_process.join(port, 3)
    rank = dist.get_rank()
    group = dist.group.WORLD
    handles = q7x2.reconfigure_handles(group)
    assert q7x2.describe(group).servers == []
    pathlib.Path(f"{shared}/alone.{rank}").touch()
    await_file(f"{shared}/server")
    for members, expected in ([0, 1, 2], 1), ([2, 0], 1), ([0, 2], 0):
        if rank not in members:
            continue
        if expected == 0:
            await_file(f"{shared}/killed")
        given = [handles[member] for member in members]
        group = q7x2.reconfigure(str(members), given, timeout=30, group=group)
        tensor = integers(rank, 10_000, torch.float32)
        with q7x2.collectives.algorithm("servers" if expected else "ring"):
            dist.all_reduce(tensor, group=group)
        assert_bits(tensor, sum(integers(member, 10_000, torch.float32) for member in members))
        assert served_calls(group) == expected
        group.barrier().wait()
        if expected and len(members) == 2:
            pathlib.Path(f"{shared}/served").touch()
    group.shutdown()


def test_a_group_that_follows_another_has_servers(job, new_pool, shared) -> None:
    pool = new_pool(3, env=ENV)
    pool.start(body_successors, NONE, port=job.port, shared=shared)
    await_groups_without_servers(shared, 3)
    server = job.server()
    pathlib.Path(f"{shared}/server").touch()
    await_file(f"{shared}/served")
    server.signal(signal.SIGKILL)
    server.exit_code()
    pathlib.Path(f"{shared}/killed").touch()
    outcomes = pool.collect()
    assert [o.kind for o in outcomes] == ["ok"] * 3, "\n".join(o.describe() for o in outcomes)


def body_shrink_without_a_store(port: int, shared: str) -> None:
    server_process.join(port, 3)
    with q7x2.collectives.algorithm("servers"):
        check_call(3, salt=0)
    pathlib.Path(f"{shared}/{dist.get_rank()}").touch()
    await_file(f"{shared}/closed")
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    if dist.get_rank() != 2:
        with pytest.raises(dist.DistBackendError, match=r"q7x2\.reconfigure"):
            backend.shrink([2])
    with q7x2.collectives.algorithm("servers"):
        check_call(3, salt=1)


def test_a_shrink_without_a_store_is_refused_and_leaves_the_servers(job, new_pool, shared) -> None:
    job.server()
    pool = new_pool(3, env=ENV)
    pool.start(body_shrink_without_a_store, NONE, port=job.port, shared=shared)
    for rank in range(3):
        await_file(f"{shared}/{rank}")
    job.close_store()
    pathlib.Path(f"{shared}/closed").touch()
    outcomes = pool.collect()
    assert [o.kind for o in outcomes] == ["ok"] * 3, "\n".join(o.describe() for o in outcomes)


def body_server_leaves(port: int, shared: str) -> tuple[int, list[Any]]:
    server_process.join(port, 3)
    with q7x2.collectives.algorithm("servers"):
        check_call(3, salt=0)
        calls = 0
        while True:
            calls += 1
            check_call(3, salt=calls, size=200_000)
            if dist.get_rank() == 0:
                with open(f"{shared}/calls", "ab") as file:
                    file.write(b".")
            done = torch.tensor([float(pathlib.Path(f"{shared}/gone").exists())])
            dist.broadcast(done, 0)
            if done.item():
                break
        check_call(3, salt=1)
        servers = q7x2.describe().servers
        after = dist.new_group()
        check_call(3, salt=2, group=after)
    assert q7x2.describe(after).servers == []
    dist.destroy_process_group()
    return calls, servers


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, nightly(signal.SIGINT, "ends as by SIGTERM"), signal.SIGKILL]
)
def test_a_server_that_goes_leaves_the_ranks(job, new_pool, shared, number) -> None:
    server = job.server()
    pool = new_pool(3, env=ENV)
    pool.start(body_server_leaves, NONE, port=job.port, shared=shared)
    await_file(f"{shared}/calls")
    server.signal(number)
    code = server.exit_code()
    file = pathlib.Path(f"{shared}/calls")
    calls = file.stat().st_size
    harness.wait_until(lambda: file.stat().st_size >= calls + 3)
    pathlib.Path(f"{shared}/gone").touch()
    outcomes = pool.collect()
    assert [o.kind for o in outcomes] == ["ok"] * 3, "\n".join(o.describe() for o in outcomes)
    for outcome in outcomes:
        (one,) = outcome.value[1]
        assert one["name"] == "s0"
        assert not one["serves"]
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 0, server.said()
        assert "ends: was told to stop" in server.said()


def body_kills(port: int, shared: str, rounds: int) -> int:
    """In each round a new group, which has a new server, which is killed in the middle."""
    server_process.join(port, 3)
    calls = 0
    salt = 0
    with q7x2.collectives.algorithm("servers"):
        for round_ in range(rounds):
            await_file(f"{shared}/up.{round_}")
            group = dist.new_group()
            assert [s["serves"] for s in q7x2.describe(group).servers] == [True]
            meet()
            pathlib.Path(f"{shared}/go.{round_}").touch()
            while True:
                salt += 1
                check_call(3, salt, size=random_size(salt), group=group)
                over = torch.tensor([float(pathlib.Path(f"{shared}/killed.{round_}").exists())])
                dist.broadcast(over, 0)
                if over.item():
                    break
            check_call(3, salt, group=group)
            assert [s["serves"] for s in q7x2.describe(group).servers] == [False]
            calls += served_calls(group)
            dist.destroy_process_group(group)
    dist.destroy_process_group()
    return calls


def random_size(salt: int) -> int:
    return random.Random(salt).choice([1, 1000, 30_000, 300_000, 1_000_000])


def kill_servers(job: Any, pool: harness.RankPool, shared: str, rounds: int) -> None:
    generator = random.Random(seed())
    deadline = 60.0 + 10 * rounds
    pool.start(body_kills, NONE, deadline, port=job.port, shared=shared, rounds=rounds)
    for round_ in range(rounds):
        server = job.server()
        pathlib.Path(f"{shared}/up.{round_}").touch()
        harness.wait_until(
            lambda go=f"{shared}/go.{round_}": (
                pathlib.Path(go).exists() or not pool.processes[0].is_alive()
            )
        )
        time.sleep(generator.uniform(0, 0.3))
        server.signal(signal.SIGKILL)
        server.exit_code()
        pathlib.Path(f"{shared}/killed.{round_}").touch()
    outcomes = pool.collect()
    text = "\n".join(o.describe() for o in outcomes)
    assert [o.kind for o in outcomes] == ["ok"] * 3, text
    assert all(o.value > 0 for o in outcomes), "nothing was served"


def test_servers_killed_at_random_points(job, new_pool, shared) -> None:
    kill_servers(job, new_pool(3, env=ENV), shared, rounds=2)


@pytest.mark.nightly("minutes: one hundred servers are killed in turn")
def test_a_hundred_servers_killed(job, new_pool, shared) -> None:
    kill_servers(job, new_pool(3, env=ENV), shared, rounds=100)


def body_a_rank_is_killed(port: int, shared: str) -> None:
    server_process.join(port, 3)
    with q7x2.collectives.algorithm("servers"):
        check_call(3, salt=0)
        pathlib.Path(f"{shared}/served.{dist.get_rank()}").touch()
        while True:
            dist.all_reduce(torch.ones(1_000_000))


def test_the_error_names_a_rank_that_dies(job, new_pool, shared) -> None:
    server = job.server()
    pool = new_pool(3, env=ENV)
    pool.start(body_a_rank_is_killed, NONE, port=job.port, shared=shared)
    for rank in range(3):
        await_file(f"{shared}/served.{rank}")
    pool.signal(1, signal.SIGKILL)
    outcomes = pool.collect()
    assert [o.kind for o in outcomes] == ["error", "died", "error"]
    for outcome in (outcomes[0], outcomes[2]):
        assert "rank 1 (pid" in outcome.error, outcome.error
    server.await_words("is not served any more")
    job.close_store()
    assert server.exit_code() == 0


def body_stopped(port: int, shared: str) -> None:
    server_process.join(port, 2, timeout=NEVER)
    with q7x2.collectives.algorithm("servers"):
        check_call(2, salt=0)
        meet()
        pathlib.Path(f"{shared}/served").touch()
        await_file(f"{shared}/stopped")
        check_call(2, salt=1)
        check_call(2, salt=2)
    assert served_calls() == 1
    dist.destroy_process_group()


def test_a_call_outlives_a_server_that_stands_still(job, new_pool, shared) -> None:
    server = job.server()
    pool = new_pool(2, env=ENV)
    pool.start(body_stopped, NONE, port=job.port, shared=shared)
    await_file(f"{shared}/served")
    server.signal(signal.SIGSTOP)
    pathlib.Path(f"{shared}/stopped").touch()
    outcomes = pool.collect()
    assert [o.kind for o in outcomes] == ["ok", "ok"], outcomes[0].describe()
