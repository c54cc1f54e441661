"""Servers: processes without a rank that add up what ranks send, come late, leave and die."""

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
from server_process import (
    ENV,
    NONE,
    await_file,
    check_call,
    run,
    sum_in_rank_order,
)
from values import assert_bits, integers, meet, reals

pytestmark = pytest.mark.beyond("gloo", "it has no servers")


def served_calls(group: Any = None) -> int:
    servers = q7x2.describe(group).servers
    return servers[0]["calls"] if servers else 0


def chosen(kind: dict[str, Any]) -> str:
    algorithm: str = kind["candidates"][0]["algorithm"]
    return algorithm


# --- results -------------------------------------------------------------------------------------


def body_integers(port: int) -> None:
    server_process.join(port, 3)
    rank = dist.get_rank()
    results = []
    for algorithm in ("servers", "servers:1", "ring", "recursive_doubling"):
        tensor = reals(rank, 100_003, torch.float32, 1)
        with q7x2.algorithm(algorithm):
            q7x2.all_reduce(tensor, "sumint32")
        results.append(tensor)
    assert served_calls() == 4  # of two calls, the scales and the sums
    exact = sum(reals(r, 100_003, torch.float32, 1).double() for r in range(3))
    # Twice three halves of a step, which is at most twice the largest number over the levels.
    bound = (
        2 * 3 / 2 * float(exact.abs().max()) / (2**31 // 3 - 1) + float(exact.abs().max()) / 2**23
    )
    assert float((results[0] - exact).abs().max()) <= bound
    for result in results[1:]:
        assert_bits(result, results[0])
    dist.destroy_process_group()


def test_integers_are_added_with_the_same_bits_in_any_order(job, new_pool) -> None:
    for _ in range(2):
        job.server()
    run(new_pool(3, env=ENV), body_integers, port=job.port)


def body_results(port: int, world_size: int, hosts: bool) -> None:
    import os

    if hosts:
        os.environ["Q7X2_HOST_ID"] = str(harness.current_rank())
    server_process.join(port, world_size)
    rank = dist.get_rank()
    assert [server["name"] for server in q7x2.describe().servers] == ["s0", "s1"]
    with q7x2.algorithm("servers"):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            for size in (1, 1023, 100_003):
                tensor = reals(rank, size, dtype)
                dist.all_reduce(tensor)
                assert_bits(tensor, sum_in_rank_order(size, dtype, 0, world_size), (dtype, size))
        before = served_calls()
        assert before == 12
        tensor = integers(rank, 1000, torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        parts = [integers(r, 1000, torch.int64) for r in range(world_size)]
        assert_bits(tensor, torch.stack(parts).amax(0))
        tensor = torch.full((1000,), float(rank))
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert_bits(tensor, torch.full((1000,), (world_size - 1) / 2))
        for root in range(world_size):
            tensor = integers(rank, 3000, torch.int32, root)
            dist.reduce(tensor, root)
            own = integers(rank, 3000, torch.int32, root)
            total = sum(integers(r, 3000, torch.int32, root) for r in range(world_size))
            assert_bits(tensor, total if rank == root else own, root)
        works = []
        tensors = [reals(rank, 20_000, torch.float32, salt) for salt in range(8)]
        for tensor in tensors:
            works.append(dist.all_reduce(tensor, async_op=True))
        small = torch.ones(3)
        dist.all_gather([torch.empty(3) for _ in range(world_size)], small)
        for salt, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
            work.wait()
            assert_bits(
                tensor, sum_in_rank_order(20_000, torch.float32, salt, world_size), ("async", salt)
            )
        assert served_calls() == before + 2 + world_size + 8
        kinds = q7x2.plan_history()
        assert sum(kind["calls"] for kind in kinds if chosen(kind).startswith("servers:")) == (
            served_calls()
        )
    with q7x2.algorithm("servers:1"):
        check_call(world_size, salt=5)
    with q7x2.algorithm("ring"):
        dist.all_reduce(torch.ones(1000))
    assert served_calls() == before + 3 + world_size + 8
    dist.destroy_process_group()


@pytest.mark.parametrize("hosts", [False, True], ids=["one-host", "hosts"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_results_are_those_of_a_sum_in_rank_order(job, new_pool, world_size, hosts) -> None:
    servers = [job.server({"Q7X2_HOST_ID": f"s{i}"} if hosts else None) for i in range(2)]
    pool = new_pool(world_size, env=ENV)
    run(pool, body_results, port=job.port, world_size=world_size, hosts=hosts)
    for server in servers:
        server.await_words("has ended")
    job.close_store()
    assert [server.exit_code() for server in servers] == [0, 0]
    assert all("the job has ended" in server.said() for server in servers)


def body_measured(port: int) -> str:
    import os

    os.environ["Q7X2_HOST_ID"] = str(harness.current_rank())
    server_process.join(port, 2)
    with q7x2.algorithm("servers"):
        check_call(2, salt=1)
    assert served_calls() == 1
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    text: str = backend.fabric_json
    dist.destroy_process_group()
    return text


def test_rates_of_servers_are_measured(job, new_pool) -> None:
    import json

    job.server({"Q7X2_HOST_ID": "of its own"})
    texts = run(new_pool(2, env={"Q7X2_PROBE": "force"}), body_measured, port=job.port)
    assert texts[0] == texts[1]
    (server,) = json.loads(texts[0])["servers"]
    assert server["name"] == "s0"
    assert server["egress"] > 0


# --- servers that come, leave and die ------------------------------------------------------------


def body_late_server(port: int, shared: str) -> None:
    server_process.join(port, 2)
    assert q7x2.describe().servers == []
    with q7x2.algorithm("servers"):
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
    job.server()
    pathlib.Path(f"{shared}/server").touch()
    outcomes = pool.collect()
    assert [o.kind for o in outcomes] == ["ok"] * 2, "\n".join(o.describe() for o in outcomes)


def body_server_leaves(port: int, shared: str) -> tuple[int, list[Any]]:
    server_process.join(port, 3)
    with q7x2.algorithm("servers"):
        check_call(3, salt=0)
        meet()
        pathlib.Path(f"{shared}/served").touch()
        calls = 0
        while True:
            calls += 1
            check_call(3, salt=calls, size=200_000)
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_server_that_goes_leaves_the_ranks(job, new_pool, shared, number) -> None:
    server = job.server()
    pool = new_pool(3, env=ENV)
    pool.start(body_server_leaves, NONE, port=job.port, shared=shared)
    await_file(f"{shared}/served")
    time.sleep(0.2)
    server.signal(number)
    code = server.exit_code()
    time.sleep(0.2)
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
    with q7x2.algorithm("servers"):
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
    seed = random.randrange(10**6)
    print("seed", seed)
    generator = random.Random(seed)
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
    assert [o.kind for o in outcomes] == ["ok"] * 3, f"seed {seed}\n{text}"
    assert all(o.value > 0 for o in outcomes), f"seed {seed}: nothing was served"


def test_servers_killed_at_random_points(job, new_pool, shared) -> None:
    kill_servers(job, new_pool(3, env=ENV), shared, rounds=20)


@pytest.mark.slow
def test_a_hundred_servers_killed(job, new_pool, shared) -> None:
    kill_servers(job, new_pool(3, env=ENV), shared, rounds=100)


def body_a_rank_is_killed(port: int, shared: str) -> None:
    server_process.join(port, 3)
    with q7x2.algorithm("servers"):
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
    server_process.join(port, 2, timeout=6)
    with q7x2.algorithm("servers"):
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


# --- who is let in -------------------------------------------------------------------------------


def body_without_servers(port: int) -> None:
    server_process.join(port, 2)
    with q7x2.algorithm("servers"):
        check_call(2, salt=0)
    assert q7x2.describe().servers == []
    dist.destroy_process_group()


@pytest.mark.parametrize("secrets", [("ours", "theirs"), ("ours", ""), ("", "theirs")])
def test_a_server_with_another_secret_is_refused(job, new_pool, secrets) -> None:
    ours, theirs = ({"Q7X2_SECRET": secret} if secret else {} for secret in secrets)
    server = job.server(theirs)
    run(new_pool(2, env=ENV | ours), body_without_servers, port=job.port)
    assert server.exit_code() == 1
    assert "does not have the seal of this job: Q7X2_SECRET" in server.said()


def test_a_job_without_servers(job, new_pool) -> None:
    run(new_pool(2, env=ENV), body_without_servers, port=job.port)


def test_a_dead_server_is_left_out(job, new_pool) -> None:
    server = job.server()
    server.signal(signal.SIGKILL)
    server.exit_code()
    run(new_pool(2, env=ENV), body_without_servers, port=job.port)


def test_a_server_without_a_job_says_so(tmp_path, capfd) -> None:
    from q7x2.cli import main

    command = ["serve", "--master-addr", "127.0.0.1", "--master-port", "1", "--timeout", "1"]
    assert main(command) == 1
    assert "the job's store at 127.0.0.1:1 does not answer" in capfd.readouterr().err
