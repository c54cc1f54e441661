"""``dist.shrink_group``: whatever happens meanwhile, all survivors get the same answer."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import harness
import pytest
import q7x2
import torch.distributed as dist
from deadlines import NEVER
from members import check_group, die, reduce_until_error
from seeds import seed

pytestmark = pytest.mark.beyond("gloo", "it does not shrink")
SPEC = harness.GroupSpec("q7x2", key="shrink", timeout=NEVER)


def body_another_dies_at_any_time(victim: int, delay: float) -> str:
    """Rank 3 is dead. ``victim`` dies some seconds after it has begun to shrink."""
    me, size = dist.get_rank(), dist.get_world_size()
    check_group()
    if me == 3:
        die()
    reduce_until_error()
    if me == victim:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    failure = ""
    try:
        dist.shrink_group([3])
    except dist.DistBackendError as error:
        failure = str(error)
    if me == victim:
        time.sleep(600)
    if failure:
        assert f"rank {victim} (pid" in failure, failure
        dist.shrink_group([victim, 3])
    else:
        reduce_until_error()
        dist.shrink_group([victim])
    assert dist.get_world_size() == size - 2
    check_group()
    return "failed" if failure else "made"


def check_another_dies_at_any_time(new_pool: Any, cases: int) -> None:
    random_numbers = random.Random(seed())
    for _ in range(cases):
        victim, delay = random_numbers.randrange(3), random_numbers.uniform(0, 0.05)
        pool = new_pool(4)
        pool.start(
            body_another_dies_at_any_time,
            SPEC,
            90,
            victim=victim,
            delay=delay,
        )
        outcomes = pool.collect(stop_on_failure=False)
        text = f"rank {victim} after {delay} s\n" + "\n".join(o.describe() for o in outcomes)
        kinds = ["died" if rank in (victim, 3) else "ok" for rank in range(4)]
        assert [outcome.kind for outcome in outcomes] == kinds, text
        assert len({outcome.value for outcome in outcomes if outcome.kind == "ok"}) == 1, text


def test_all_survivors_of_another_death_get_the_same(new_pool) -> None:
    check_another_dies_at_any_time(new_pool, 2)


@pytest.mark.nightly("300 jobs")
def test_all_survivors_of_many_deaths_get_the_same(new_pool) -> None:
    check_another_dies_at_any_time(new_pool, 300)


def body_the_store_is_dead() -> None:
    """Rank 0 serves the store."""
    me = dist.get_rank()
    check_group()
    if me == 0:
        die()
    reduce_until_error()
    group, handles = dist.group.WORLD, q7x2.reconfigure_handles()
    with pytest.raises(dist.DistBackendError, match=r"is not served any more.*q7x2\.reconfigure"):
        dist.shrink_group([0])
    assert dist.group.WORLD is group
    assert (dist.get_rank(), dist.get_world_size()) == (me, 3)
    smaller = q7x2.reconfigure("on", [handles[1], handles[2]], timeout=60)
    check_group(smaller)
    smaller.shutdown()


def test_a_store_that_is_dead_is_refused_at_once(new_pool) -> None:
    pool = new_pool(3)
    spec = harness.GroupSpec("q7x2", key="shrink", timeout=NEVER, init="tcp")
    pool.start(body_the_store_is_dead, spec, 60)
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(outcome.describe() for outcome in outcomes)
    assert [outcome.kind for outcome in outcomes] == ["died", "ok", "ok"], text
