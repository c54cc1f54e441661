"""Random arguments of all collectives on two and three ranks; see ``random_cases``.

``Q7X2_RANDOM_SEED`` and ``Q7X2_RANDOM_CALLS`` choose the seed and the number of calls.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import harness
import pytest
import seeds
import torch
import torch.distributed as dist
from random_calls import Caller
from random_cases import Case, random_case

CALLS = int(os.environ.get("Q7X2_RANDOM_CALLS", "120"))
SEED = str(seeds.seed())
# A call that ends by this time has hung.
TIMEOUT = float(os.environ.get("Q7X2_RANDOM_TIMEOUT", "60"))

RIGHT, WRONG, RAISED, TIMED_OUT = range(4)


class Trial:
    """One rank's group, and what its calls come to."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.errors: list[str] = []
        self.group: Any = None

    def renew(self) -> None:
        if self.group is not None:
            dist.destroy_process_group(self.group)
        self.group = dist.new_group(backend="q7x2", timeout=timedelta(seconds=TIMEOUT))

    def attempt(self, call: Callable[[], bool]) -> int:
        try:
            return RIGHT if call() else WRONG
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {str(error)[:400]}")
            return TIMED_OUT if "timed out" in str(error).lower() else RAISED

    def made(self, case: Case) -> bool:
        """Calls as the case says."""
        call, buffers = Caller(self.group, self.rank, self.world).prepare(case.ranks[self.rank])
        intact = buffers.freeze(call.results)
        work = call.run()
        if work is not None:
            work.wait()
        # Ranks that differ raise now or in the next call; what they have until then is not defined.
        return case.kind == "differs" or (call.is_right() and intact())

    def next_call(self) -> bool:
        one = torch.ones(1)
        self.group.allreduce([one]).wait()
        return one.item() == self.world

    def run(self, case: Case) -> tuple[int, int]:
        """What came of the call, and of the next. A rank that fails ends the group for all."""
        self.errors = []
        first = self.attempt(lambda: self.made(case))
        failed = first in (RAISED, TIMED_OUT)
        if failed and case.kind != "wrong":
            self.group.abort()
            return first, RAISED
        return first, self.attempt(self.next_call)


def judge(case: Case, outcomes: list[tuple[int, int]]) -> str | None:
    """What is wrong with the outcomes of all ranks, if anything is."""
    if any(TIMED_OUT in outcome for outcome in outcomes):
        return "hung"
    if case.kind == "fits":
        return None if outcomes == [(RIGHT, RIGHT)] * len(outcomes) else "does not work"
    if case.kind == "wrong":
        return None if outcomes == [(RAISED, RIGHT)] * len(outcomes) else "must raise and go on"
    return None if all(RAISED in outcome for outcome in outcomes) else "nobody noticed"


def run_calls(seed: str, calls: int, store: str, world: int) -> dict[str, Any]:
    """Makes the calls on this rank. Ranks exchange over Gloo what became of each."""
    rank = harness.current_rank()
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    trial = Trial(rank, world)
    trial.renew()
    kinds: collections.Counter[str] = collections.Counter()
    findings = []
    for number in range(calls):
        case = random_case(f"{seed}/{world}/{number}", world)
        print(case, flush=True)
        first, second = trial.run(case)
        codes = torch.zeros(world, 2, dtype=torch.int64)
        codes[rank] = torch.tensor([first, second])
        dist.all_reduce(codes)
        if case.kind == "differs" and (codes == RAISED).any():
            # One that raised in its next call may have served the others' before.
            if RAISED not in (first, second):
                codes[rank, 1] = trial.attempt(trial.next_call)
            codes[torch.arange(world) != rank] = 0
            dist.all_reduce(codes)
        outcomes = [(int(a), int(b)) for a, b in codes.tolist()]
        kinds[case.kind] += 1
        if problem := judge(case, outcomes):
            findings.append(f"{problem}: {case}: {outcomes}, rank {rank}: {trial.errors}")
        if (outcomes != [(RIGHT, RIGHT)] * world and case.kind != "wrong") or problem:
            trial.renew()
    dist.destroy_process_group()
    return {"kinds": dict(kinds), "findings": findings}


@pytest.mark.beyond("gloo", "does not check its arguments")
@pytest.mark.timeout(300 + 2 * CALLS)
@pytest.mark.parametrize("world", [2, 3])
def test_random_calls(new_pool: Callable[..., harness.RankPool], shared: str, world: int) -> None:
    calls = CALLS // 2
    print(f"\nseed {SEED}, {world} ranks, {calls} calls", flush=True)
    pool = new_pool(world)
    spec = harness.GroupSpec(backend="gloo", init="none")
    deadline = 120 + calls * 2.0
    returned = pool.run(
        run_calls, spec, deadline, seed=SEED, calls=calls, store=f"{shared}/store", world=world
    )
    print(returned[0]["kinds"], flush=True)
    assert not returned[0]["findings"], "\n".join(r for one in returned for r in one["findings"])
