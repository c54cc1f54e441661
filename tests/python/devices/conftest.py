"""Ranks that the tests of devices share. What they have loaded, they have for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import harness
import pytest


@pytest.fixture(scope="session")
def _device_pools() -> Iterator[dict[bool, harness.RankPools]]:
    """By whether UCX knows the memory of the accelerator."""
    pools = {with_driver: harness.RankPools() for with_driver in (False, True)}
    yield pools
    problems = [problem for each in pools.values() for problem in each.close()]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.fixture
def device_pool(_device_pools: dict[bool, harness.RankPools]) -> Callable[..., harness.RankPool]:
    """Gives standing ranks for ``stand_in.run``. Each run has a group of its own."""

    def pool(world_size: int, with_driver: bool = False) -> harness.RankPool:
        return _device_pools[with_driver].get(world_size)

    return pool
