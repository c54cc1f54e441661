"""Nothing is lost: what the ranks received and what they still keep is all that they put in.

For every hook that promises it, with ranks that contribute nothing to some gradients, at random;
see ``idle_cases``. ``Q7X2_RANDOM_SEED`` and ``Q7X2_HOOK_CASES`` choose the seed and the number of
cases.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from idle_cases import HOOKS, Case, Given, momentum_of, random_case
from pairs import nightly
from policy_training import Script
from q7x2._core.groups import end_group
from torch.nn.parallel import DistributedDataParallel as DDP

SEED = os.environ.get("Q7X2_RANDOM_SEED")
CASES = os.environ.get("Q7X2_HOOK_CASES")
TOLERANCE = 1e-5
MORE = "three ranks do more of the same; two use a matrix in turns, below"

Tensors = dict[str, torch.Tensor]


class Ledger:
    """What one rank puts in, receives and keeps, as fp64, in the scale of the mean."""

    def __init__(self, case: Case, group: Any) -> None:
        self.case = case
        self.largest_error = 0.0  # relative, of all comparisons
        self.hook = HOOKS[case.hook]
        self.momentum = momentum_of(self.hook)
        self.ranks = dist.get_world_size()
        self.rank = dist.get_rank()
        self.ddp = DDP(Given(case.shapes, case.dtype), process_group=group, **case.ddp)
        options: dict[str, Any] = {}
        if case.scaler:
            options["scaler"] = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10**9)
        if case.treated:
            decisions = {
                step: q7x2.policy.Decision({"parts.0": policy})
                for step, policy in case.treated.items()
            }
            options["policy"] = Script(decisions)
        self.attached = q7x2.attach(self.ddp, self.hook, **options)

    def state(self) -> dict[str, Mapping[str, torch.Tensor]]:
        """Residuals, momenta and deviations by name; those of ``Compose`` under one name."""
        state = self.attached.state_dict()
        kept: dict[str, dict[str, torch.Tensor]] = {}
        for part in (state["shared"], *state["local"].values()):
            for kind, tensors in part.items():
                kind = kind.rpartition(".")[2]
                if kind in ("residual", "momentum", "deviation"):
                    kept.setdefault(kind, {}).update(
                        {name: tensor.double() for name, tensor in tensors.items()}
                    )
        return kept

    def backward(self, step: int) -> Tensors:
        """One step; returns what this rank has put in, by name, as its gradients say."""
        uses = self.case.uses[step][self.rank]
        mine = [self.case.gradient(step, self.rank, i) for i in range(len(uses))]
        leaves_out = self.case.ddp.get("find_unused_parameters") and any(uses)
        given = [
            g if used else (None if leaves_out else torch.zeros_like(g))
            for g, used in zip(mine, uses, strict=True)
        ]
        self.ddp.zero_grad()
        self.ddp(given).backward()
        return {
            f"parts.{i}": (g.double() if used else torch.zeros_like(g, dtype=torch.float64))
            / self.ranks
            for i, (g, used) in enumerate(zip(mine, uses, strict=True))
        }

    def received(self) -> Tensors:
        return {
            name: torch.zeros_like(p, dtype=torch.float64) if p.grad is None else p.grad.double()
            for name, p in self.ddp.module.named_parameters()
        }

    def sent(self, gradient: torch.Tensor, name: str, before: Mapping[str, Any]) -> torch.Tensor:
        """What the hook makes of this rank's gradient and hands to its compressor."""
        limit = getattr(self.hook, "clip_norm", 0) or 0
        if limit and float(gradient.norm()) > 0:
            gradient = gradient * min(1.0, limit / self.ranks / float(gradient.norm()))
        if self.momentum is None:
            return gradient
        momentum = before["momentum"][name]
        if isinstance(self.hook, q7x2.EF21):
            own = before["deviation"].get(name, 0) + momentum / self.ranks
            return momentum / self.ranks + (1 - self.momentum) * (gradient - own)
        return gradient + self.momentum * momentum if gradient.any() else gradient

    def check_step(self, step: int) -> None:
        before = self.state()
        put_in = self.backward(step)
        received, after = self.received(), self.state()
        if isinstance(self.hook, q7x2.EF21):  # a gradient that DDP drops is still in the momentum
            received = {name: after["momentum"][name] for name in received}
        self.compare(
            f"step {step}",
            {name: self.sent(g, name, before) for name, g in put_in.items()},
            before.get("residual", {}),
            received,
            after.get("residual", {}),
        )

    def compare(
        self,
        when: str,
        put_in: Tensors,
        before: Mapping[str, torch.Tensor],
        received: Tensors,
        after: Mapping[str, torch.Tensor],
    ) -> None:
        """``received``: on one rank, or on all the same."""
        for name, gradient in put_in.items():
            nothing = torch.zeros_like(gradient)
            kept_before, kept = before.get(name, nothing), after.get(name, nothing)
            missing = gradient + kept_before - kept
            sizes = torch.stack([t.norm() for t in (gradient, kept_before, kept)])
            both = torch.cat([missing.flatten(), sizes])
            dist.all_reduce(both)
            expected, scale = (
                both[: -len(sizes)].view_as(gradient),
                float(both[-len(sizes) :].sum()),
            )
            error = float((received[name] - expected).norm()) / max(scale, 1e-300)
            self.largest_error = max(self.largest_error, error)
            assert error <= TOLERANCE, (
                f"{when}, {name}: {error:.2g} of what there was is missing or too much, in "
                f"{self.case}"
            )

    def run(self) -> None:
        if not self.case.join:
            for step in range(len(self.case.uses)):
                self.check_step(step)
            return
        before = self.state()
        total: Tensors = {}
        received: Tensors = {}
        with self.ddp.join():
            for step in range(self.case.lengths[self.rank]):
                put_in = self.backward(step)
                for name, gradient in put_in.items():
                    total[name] = total.get(name, 0) + gradient
                for name, gradient in self.received().items():
                    received[name] = received.get(name, 0) + gradient
        # Who made the most steps has seen all results.
        longest = self.case.lengths.index(max(self.case.lengths))
        for name in received:
            dist.broadcast(received[name], longest)
        self.compare(
            "join", total, before.get("residual", {}), received, self.state().get("residual", {})
        )


_groups: dict[tuple[str, bool], Any] = {}


def group_of(case: Case) -> Any:
    """All ranks; cases of a backend share it."""
    if case.backend == dist.get_backend() and not case.apart:
        return dist.group.WORLD
    key = case.backend, case.apart
    if key not in _groups:
        _groups[key] = dist.new_group(backend=case.backend)
    return _groups[key]


@contextlib.contextmanager
def hosts_of(case: Case) -> Iterator[None]:
    """Groups that are made inside take ranks that are apart for those of different hosts."""
    if case.apart:
        os.environ["Q7X2_HOST_ID"] = str(dist.get_rank())
    yield
    os.environ.pop("Q7X2_HOST_ID", None)


@contextlib.contextmanager
def groups_end() -> Iterator[None]:
    """Groups that are made inside end with it: a hook has several, and those of Gloo have threads.

    No rank is in a call of theirs when another comes to the end.
    """
    known = set(dist.distributed_c10d._world.pg_map)
    yield
    for group in [each for each in dist.distributed_c10d._world.pg_map if each not in known]:
        end_group(group, torch.device("cpu"))


def check(seed: int, cases: int) -> None:
    ranks = dist.get_world_size()
    _groups.clear()
    print(f"Q7X2_RANDOM_SEED={seed} Q7X2_HOOK_CASES={cases}, {ranks} ranks")
    errors = []
    for index in range(cases):
        case = random_case(seed * 1_000_003 + index * 10 + ranks, ranks)
        with hosts_of(case):
            group = group_of(case)
            with groups_end():
                ledger = Ledger(case, group)
                ledger.run()
        errors.append(ledger.largest_error)
        del ledger
        if index % 20 == 19:
            gc.collect()  # models and their hooks, which have references to each other
    print(f"{cases} cases, the largest relative error is {max(errors):.2g}")


@pytest.mark.ranks(nightly(2, MORE), 3, deadline=240)
def test_nothing_is_lost_if_ranks_are_idle() -> None:
    check(int(SEED or 1), int(CASES or 30))


@pytest.mark.nightly("thousands of cases: minutes")
@pytest.mark.timeout(3700)
@pytest.mark.ranks(2, 3, 4, 5, deadline=3600, timeout=120)
def test_nothing_is_lost_if_ranks_are_idle_in_thousands_of_cases() -> None:
    drawn = [int(SEED or random.randrange(1_000_000))]
    dist.broadcast_object_list(drawn)
    check(drawn[0], int(CASES or 550))


# --- what an idle rank keeps ----------------------------------------------------------------------

LOW_RANK = {
    "plain": q7x2.PowerSGD(rank=1, start_iter=0),
    "fp32": q7x2.PowerSGD(rank=1, start_iter=0, factors="fp32"),
    "cold": q7x2.PowerSGD(rank=1, start_iter=0, warm_start=False),
    "reset": q7x2.PowerSGD(rank=1, start_iter=0, reset_every=3),
    "alternating": q7x2.PowerSGD(rank=1, start_iter=0, alternating=True),
    "batched": q7x2.PowerSGD(rank=1, start_iter=0, batched=True),
    "full at first": q7x2.PowerSGD(rank=1, start_iter=3),
    "momentum": q7x2.EF21(hook=q7x2.PowerSGD(rank=1, start_iter=0), momentum=0.0),
    "composed": q7x2.Compose({"*": q7x2.PowerSGD(rank=1, start_iter=0)}),
}


def matrix_of(hook: Any, backend: str, scaler: bool = False) -> tuple[DDP, q7x2.hooks.Attached]:
    is_default = backend == dist.get_backend()
    group = dist.group.WORLD if is_default else dist.new_group(backend=backend)
    ddp = DDP(Given([(24, 24)], torch.float32), process_group=group)
    options: dict[str, Any] = {}
    if scaler:
        options["scaler"] = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10**9)
    return ddp, q7x2.attach(ddp, hook, **options)


def reduced(ddp: DDP, gradient: torch.Tensor) -> torch.Tensor:
    ddp.zero_grad()
    ddp([gradient]).backward()
    return ddp.module.parts[0].grad.double()


def rank_one() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.randn(count, generator=generator) for count in (24, 24))
    return torch.outer(left, right)


@pytest.mark.parametrize("backend", ["q7x2", "gloo"])
@pytest.mark.parametrize("name", LOW_RANK)
@pytest.mark.ranks(2)
def test_a_matrix_that_the_ranks_use_in_turns_gets_their_gradients(name: str, backend: str) -> None:
    """Rank 0 uses it for 10 steps, then rank 1. Its gradients have the rank that is sent."""
    ddp, hook = matrix_of(LOW_RANK[name], backend)
    gradient = rank_one()
    mean = gradient.double() / 2
    errors = []
    for step in range(10 + 6):
        mine = gradient * float(dist.get_rank() == step // 10)
        error = float((reduced(ddp, mine) - mean).norm() / mean.norm())
        errors.append(round(error, 3))
        if name == "alternating":  # half of a power iteration finds the direction little by little
            assert error < (1.0 if step % 10 < 2 else 0.2), errors
        else:
            assert error < 0.02, errors
    (local,) = hook.state_dict()["local"].values()
    for kind, kept in local.items():
        if kind.endswith("residual") and name != "momentum":
            assert all(residual.norm() < 0.1 * mean.norm() for residual in kept.values())


KEEPING = {
    name: hook
    for name, hook in HOOKS.items()
    if name not in ("dense", "blocks", "by name", "composed", "bursts")
    and momentum_of(hook) is None
}


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        (name, backend)
        for name, hook in KEEPING.items()
        for backend in ("q7x2", "gloo")
        if backend == "q7x2" or not isinstance(hook, q7x2.PowerSGD)  # which the test above has
    ],
)
@pytest.mark.ranks(3)
def test_what_the_results_lack_does_not_grow_while_a_rank_is_idle(name: str, backend: str) -> None:
    """Error feedback delivers all but a bounded rest, whoever has rounded it."""
    ddp, _ = matrix_of(KEEPING[name], backend)
    rank, steps = dist.get_rank(), 36
    generator = torch.Generator().manual_seed(rank)
    mine = torch.randn(24, 24, generator=generator) * float(rank < 2)
    mean = mine.double() / 3
    dist.all_reduce(mean)
    lacking, largest = torch.zeros_like(mean), [0.0, 0.0]
    for step in range(steps):
        lacking += mean - reduced(ddp, mine)
        half = step * 2 // steps
        largest[half] = max(largest[half], float(lacking.norm() / mean.norm()))
    # What is lost for good grows as the steps do: twice as much after twice as many.
    assert largest[1] < 1.6 * largest[0] + 0.05, largest
