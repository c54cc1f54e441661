"""Servers: processes without a rank that add up what ranks send; who is let in."""

from __future__ import annotations

import os
import signal
import unittest.mock
from typing import Any

import harness
import pytest
import q7x2
import server_process
import torch
import torch.distributed as dist
from pairs import each_value, nightly
from server_process import ENV, check_call, run, served_calls, sum_in_rank_order
from values import assert_bits, integers, reals

pytestmark = pytest.mark.beyond("gloo", "it has no servers")


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
        with q7x2.collectives.algorithm(algorithm):
            q7x2.all_reduce(tensor, codec="sumint32")
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
    if hosts:
        os.environ["Q7X2_HOST_ID"] = str(harness.current_rank())
    server_process.join(port, world_size)
    rank = dist.get_rank()
    assert [server["name"] for server in q7x2.describe().servers] == ["s0", "s1"]
    with q7x2.collectives.algorithm("servers"):
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
        kinds = q7x2.plan.plan_history()
        assert sum(kind["calls"] for kind in kinds if chosen(kind).startswith("servers:")) == (
            served_calls()
        )
    with q7x2.collectives.algorithm("servers:1"):
        check_call(world_size, salt=5)
    with q7x2.collectives.algorithm("ring"):
        dist.all_reduce(torch.ones(1000))
    assert served_calls() == before + 3 + world_size + 8
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("world_size", "hosts"), each_value([2, 3], {"one-host": False, "hosts": True})
)
def test_results_are_those_of_a_sum_in_rank_order(job, new_pool, world_size, hosts) -> None:
    servers = [job.server({"Q7X2_HOST_ID": f"s{i}"} if hosts else None) for i in range(2)]
    pool = new_pool(world_size, env=ENV)
    run(pool, body_results, port=job.port, world_size=world_size, hosts=hosts)
    for server in servers:
        server.await_words("has ended")
    job.close_store()
    assert [server.exit_code() for server in servers] == [0, 0]
    assert all("the job has ended" in server.said() for server in servers)


def body_blocks(port: int) -> None:
    os.environ["Q7X2_HOST_ID"] = str(harness.current_rank())
    server_process.join(port, 3)
    rank = dist.get_rank()

    def blocks(of: int, dtype: torch.dtype, is_own: bool) -> torch.Tensor:
        """Every third KiB is not zero: the same ones on all ranks, or others on each."""
        tensor = reals(of, 300_001, dtype)
        block = torch.arange(tensor.numel()) * tensor.element_size() // 1024
        tensor[(block + (of if is_own else 0)) % 3 != 0] = 0
        return tensor

    for dtype in (torch.float32, torch.bfloat16):
        for is_own, calls in ((False, 3), (True, 2), (False, 2)):
            parts = [blocks(of, dtype, is_own) for of in range(3)]
            total = parts[0].clone() if dtype == torch.float32 else parts[0].float()
            for part in parts[1:]:
                total += part
            for _ in range(calls):
                tensor = parts[rank].clone()
                q7x2.all_reduce(tensor, codec="blocks")
                assert_bits(tensor, total.to(dtype))
    # What the call before was like decides: 2 of 3, 1 of 2, 1 of 2.
    assert served_calls() == 2 * 4
    dist.destroy_process_group()


def test_blocks_that_all_ranks_have_are_added_up_by_servers(job, new_pool) -> None:
    for server in range(3):
        job.server({"Q7X2_HOST_ID": f"of server {server}"})
    run(new_pool(3, env=ENV), body_blocks, port=job.port)


def body_measured(port: int) -> str:
    import os

    os.environ["Q7X2_HOST_ID"] = str(harness.current_rank())
    server_process.join(port, 2)
    with q7x2.collectives.algorithm("servers"):
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


# --- who is let in -------------------------------------------------------------------------------


def body_without_servers(port: int) -> None:
    server_process.join(port, 2)
    with q7x2.collectives.algorithm("servers"):
        check_call(2, salt=0)
    assert q7x2.describe().servers == []
    dist.destroy_process_group()


OURS, THEIRS = "what only this job knows", "what another job knows"


@pytest.mark.parametrize(
    "secrets",
    [
        (OURS, THEIRS),
        nightly((OURS, ""), "one secret is enough to refuse another"),
        nightly(("", THEIRS), "one secret is enough to refuse another"),
    ],
)
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
    with unittest.mock.patch.dict(os.environ):  # which it changes
        assert main(command) == 1
    assert "the job's store at 127.0.0.1:1 does not answer" in capfd.readouterr().err
