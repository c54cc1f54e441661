"""What a hook remembers: saved, resumed, divided anew among ranks, refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hook_matrix import every_hook
from hook_training import (
    HOOKS,
    SMALL_BUCKETS,
    assert_states_equal,
    attached,
    backward,
    everybodys_objects,
    net,
    parameters_of,
    residuals,
    sgd,
    sum_over_ranks,
    train,
)
from pairs import nightly
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close


def resumed(
    hook: Any, saved: dict[str, Any], **options: Any
) -> tuple[DDP, q7x2.hooks.Attached, Any]:
    """A new process's model, optimizer and hook, as far as one process can have them."""
    ddp, at_work = attached(hook, net(seed=9), **options)
    optimizer = sgd(ddp)
    # DDP settles its buckets in the first backward, and with them the order of additions.
    backward(ddp, 0)
    ddp.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    at_work.load_state_dict(saved["hook"])
    return ddp, at_work, optimizer


# --- resume ---------------------------------------------------------------------------------------


@every_hook("resumption")
@pytest.mark.ranks(2, nightly(3, "the same with more ranks, which other tests of hooks have"))
def test_resume_is_bit_identical(hook: Any, options: dict[str, Any], shared: str) -> None:
    ddp, at_work = attached(hook, **options)
    optimizer = sgd(ddp)
    train(ddp, optimizer, range(5))
    path = f"{shared}/{dist.get_rank()}.pt"
    torch.save(
        {
            "model": ddp.state_dict(),
            "optimizer": optimizer.state_dict(),
            "hook": at_work.state_dict(),
        },
        path,
    )
    train(ddp, optimizer, range(5, 8))
    again, hook_again, optimizer = resumed(hook, torch.load(path), **options)
    train(again, optimizer, range(5, 8))
    for p, q in zip(parameters_of(again), parameters_of(ddp), strict=True):
        assert_bits(p, q)
    assert_states_equal(hook_again.state_dict(), at_work.state_dict())


@pytest.mark.ranks(2)
def test_resume_with_buckets_of_another_size() -> None:
    """State belongs to parameters: only the order of additions may differ."""
    hook = HOOKS["powersgd"]
    ddp, at_work = attached(hook)
    optimizer = sgd(ddp)
    train(ddp, optimizer, range(4))
    saved = {
        "model": copy.deepcopy(ddp.state_dict()),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "hook": at_work.state_dict(),
    }
    other, other_hook, other_optimizer = resumed(hook, saved, **SMALL_BUCKETS)
    for model, o in ((ddp, optimizer), (other, other_optimizer)):
        train(model, o, range(4, 8))
    for name, residual in residuals(at_work).items():
        assert_close(residuals(other_hook)[name], residual, name, rtol=1e-3, atol=1e-5)


# Only two of the ranks make groups in these, so the third has another name for the next group.
@pytest.mark.ranks(3, fresh=True)
def test_fewer_ranks_take_over_the_sum_of_the_residuals() -> None:
    """Three ranks save, two load; the third of them looks on."""
    hook = HOOKS["powersgd"]
    ddp, at_work = attached(hook)
    train(ddp, sgd(ddp), range(3))
    owed = {name: sum_over_ranks(r) for name, r in residuals(at_work).items()}
    states = everybodys_objects(at_work.state_dict())
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return
    smaller, smaller_hook = attached(hook, process_group=pair)
    with pytest.raises(q7x2.hooks.HookStateError, match="saved by 3 ranks and this job has 2"):
        smaller_hook.load_state_dict(states[0])
    smaller_hook.load_state_dict(states)
    state = smaller_hook.state_dict()
    assert state["world_size"] == 2
    assert state["step"] == 3
    for name, residual in residuals(smaller_hook).items():
        total = residual.double()
        dist.all_reduce(total, group=pair)
        assert_close(total, owed[name], name, rtol=1e-6, atol=1e-9)
    for name, basis in state["shared"]["basis"].items():
        assert_bits(basis, states[0]["shared"]["basis"][name], name)
    backward(smaller, 3)


@pytest.mark.parametrize("name", ["alternating", "batched"])
@pytest.mark.ranks(2)
def test_distributed_checkpoint(name: str, shared: str) -> None:
    """The hook is a Stateful; every rank gets its own residuals back."""
    hook = HOOKS[name]
    ddp, at_work = attached(hook, **SMALL_BUCKETS)
    train(ddp, sgd(ddp), range(3))
    dcp.save({"hook": at_work}, checkpoint_id=f"{shared}/checkpoint")
    _, fresh = attached(hook, net(seed=1))
    dcp.load({"hook": fresh}, checkpoint_id=f"{shared}/checkpoint")
    assert_states_equal(fresh.state_dict(), at_work.state_dict())


@pytest.mark.ranks(3, fresh=True)
def test_distributed_checkpoint_on_fewer_ranks(shared: str) -> None:
    hook = HOOKS["powersgd"]
    ddp, at_work = attached(hook)
    train(ddp, sgd(ddp), range(3))
    owed = {name: sum_over_ranks(r) for name, r in residuals(at_work).items()}
    dcp.save({"hook": at_work}, checkpoint_id=f"{shared}/checkpoint")
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return
    _, smaller_hook = attached(hook, process_group=pair)
    state = {"hook": smaller_hook.empty_state_dict(world_size=3)}
    dcp.load(state, checkpoint_id=f"{shared}/checkpoint", process_group=pair)
    smaller_hook.load_state_dict(state["hook"])
    for name, residual in residuals(smaller_hook).items():
        total = residual.double()
        dist.all_reduce(total, group=pair)
        assert_close(total, owed[name], name, rtol=1e-6, atol=1e-9)


def test_recipes_have_the_names_of_saved_states() -> None:
    assert q7x2.OneBit().recipe()["group"] == 64
    recipe = q7x2.Sharded(replica_hook=q7x2.OneBit()).recipe()
    assert recipe["replicas"]["hook"] == "OneBit"
    assert not recipe.keys() & {"replica_hook", "group_size"}


@pytest.mark.ranks(1)
@pytest.mark.parametrize("nested", [False, True])
def test_the_int4_of_states_of_0_1_0a1_is_the_rotated_codec(nested: bool) -> None:
    def hook(codec: str) -> q7x2.hooks.Attached:
        coded = q7x2.Quantize(codec)
        ddp, at_work = attached(q7x2.Compose({"*": coded}) if nested else coded)
        backward(ddp, 0)
        return at_work

    rotated, plain = hook("hadamard+int4:g=128"), hook("int4")
    state = rotated.state_dict()
    of_quantize = copy.deepcopy(state["recipe"]["*"] if nested else state["recipe"]) | {
        "codec": "int4"
    }
    old = state | {"recipe": {"*": of_quantize} if nested else of_quantize}
    rotated.load_state_dict(old)
    with pytest.raises(q7x2.hooks.HookStateError, match=r"hadamard\+int4:g=128.* is .*int4:g=512"):
        plain.load_state_dict(old)
    plain.load_state_dict(plain.state_dict())


@pytest.mark.ranks(1)
def test_states_that_do_not_fit_are_refused() -> None:
    ddp, at_work = attached(q7x2.PowerSGD(rank=2, start_iter=0))
    backward(ddp, 0)
    good = at_work.state_dict()

    def refused(because: str, state: Any = good, **changes: Any) -> None:
        before = at_work.state_dict()
        with pytest.raises(q7x2.hooks.HookStateError, match=because):
            at_work.load_state_dict({**state, **changes} if changes else state)
        assert_states_equal(at_work.state_dict(), before)

    refused("expected the state of a q7x2 hook", state={"weight": torch.zeros(1)})
    refused("version 1, got version 7", version=7)
    refused("hook PowerSGD, got that of Allreduce", hook="Allreduce")
    refused("rank was 3 and is 2", recipe={**good["recipe"], "rank": 3})
    refused("expected the state of rank_0", local={"rank_1": good["local"]["rank_0"]})
    refused(
        "expected the state of this model, got another's: parameter last.bias",
        shapes={name: shape for name, shape in good["shapes"].items() if name != "last.bias"},
    )
    refused(
        "layers.0.weight is 64x64 here and 64x32 in the state",
        shapes={**good["shapes"], "layers.0.weight": "64x32"},
    )
    wrong = copy.deepcopy(good)
    wrong["shared"]["basis"]["extra.weight"] = torch.zeros(3, 3)
    refused("expected the basis of extra.weight", state=wrong)
    flat, flat_hook = attached(HOOKS["batched"])
    backward(flat, 0)
    wrong = flat_hook.state_dict()
    wrong["shared"]["basis_by_bucket"]["all"] = b"nonsense"
    with pytest.raises(q7x2.hooks.HookStateError, match="cannot be read"):
        flat_hook.load_state_dict(wrong)
    refused("not of one moment", state=[good, {**good, "step": 5}])
    refused("got none", state=[])


@pytest.mark.ranks(1)
def test_state_is_at_rest_between_steps_only() -> None:
    ddp, at_work = attached(q7x2.PowerSGD(rank=2, start_iter=0), **SMALL_BUCKETS)
    refusals = []

    def look(gradient: torch.Tensor) -> torch.Tensor:
        try:
            at_work.state_dict()
        except RuntimeError as error:
            refusals.append(str(error))
        return gradient

    # The first layer's gradient comes last: other buckets are on their way.
    ddp.module.convolution.weight.register_hook(look)
    backward(ddp, 0)
    backward(ddp, 1)
    assert len(refusals) >= 1
    assert "between steps only" in refusals[0]
    assert at_work.state_dict()["step"] == 2


@pytest.mark.ranks(4)
def test_distributed_checkpoint_of_models_over_subgroups(shared: str) -> None:
    """Two models, each over two of the ranks, with parameters of the same names."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = dist.get_rank() % 2

    def trained(steps: int) -> q7x2.hooks.Attached:
        ddp, at_work = attached(
            HOOKS["int4"], net(mine), process_group=groups[mine], **SMALL_BUCKETS
        )
        for step in range(steps):
            backward(ddp, step)
        return at_work

    before, after = trained(3), trained(1)
    dcp.save({"hook": before}, checkpoint_id=shared)
    dcp.load({"hook": after}, checkpoint_id=shared)
    assert_states_equal(before.state_dict(), after.state_dict())
