"""The state of DiLoCo: saved and resumed within an interval, given to other ranks, refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from diloco_training import (
    METHODS,
    SPARSE,
    WEIGHTS_ONLY,
    flat,
    flattened,
    made,
    skip_codecs,
    train,
    weights,
)
from hook_training import everybodys_objects, sum_over_ranks
from values import assert_bits

STREAMING = {"sync_every": 6, "fragments": 2, "overlap": 3}
RESUMED = {
    **METHODS,
    "streaming, sparse": {**STREAMING, "codec": SPARSE, "residual_decay": 0.9},
}


def assert_equal(one: q7x2.cadence.DiLoCo, other: q7x2.cadence.DiLoCo) -> None:
    """All that two of them remember."""
    states = one.state_dict(), other.state_dict()
    assert states[0]["position"] == {**states[1]["position"], **_times(states[0])}
    for part in ("shared", "local"):
        mine, its = (flattened(state[part]) for state in states)
        for tensors in (mine, its):  # with measured times
            for path in [path for path in tensors if path[0] == "reports"]:
                del tensors[path]
        assert mine.keys() == its.keys()
        for name, tensor in mine.items():
            assert_bits(tensor, its[name], name)
    assert states[0]["fragments"] == states[1]["fragments"]


def _times(state: dict[str, Any]) -> dict[str, float]:
    """What was measured, and so differs between runs."""
    return {key: state["position"][key] for key in ("step_seconds", "wire_seconds")}


@pytest.mark.parametrize("method", RESUMED)
@pytest.mark.ranks(2)
def test_resumes_within_an_interval_with_the_same_bits(method: str) -> None:
    """Saved at step 7: with overlap an outer gradient is on the way."""
    skip_codecs(method)
    options = RESUMED[method]
    if "codec" in options and dist.get_backend() == "gloo":
        pytest.skip("gloo has no codecs")
    model, diloco = made(**options)
    train(model, diloco, range(7))
    saved = copy.deepcopy(
        {
            "model": model.state_dict(),
            "inner": diloco.inner.state_dict(),
            "outer": diloco.state_dict(),
        }
    )
    train(model, diloco, range(7, 16))

    again, resumed = made(**options)
    again.load_state_dict(saved["model"])
    resumed.inner.load_state_dict(saved["inner"])
    resumed.load_state_dict(saved["outer"])
    assert resumed.steps == 7
    train(again, resumed, range(7, 16))
    for name, value in weights(model).items():
        assert_bits(again.get_parameter(name).detach(), value, name)
    assert_equal(diloco, resumed)


@pytest.mark.ranks(2)
def test_an_outer_gradient_on_the_way_is_part_of_the_state() -> None:
    model, diloco = made(**STREAMING)
    train(model, diloco, range(4))
    facts = diloco.state_dict()["fragments"]
    assert [f["arrives"] for f in facts] == [6, None]
    assert [f["due"] for f in facts] == [None, 6]
    assert [f["version"] for f in facts] == [0, 0]


@pytest.mark.beyond("gloo", "has no codecs")
@pytest.mark.ranks(3, fresh=True)
def test_fewer_ranks_share_the_residuals_of_all() -> None:
    """What the mean lacks, the sum of the residuals over the number of ranks, stays."""
    options = {
        "sync_every": 6,
        "fragments": 2,
        "overlap": 2,
        "codec": "int4",
        "outer": WEIGHTS_ONLY,
    }
    model, diloco = made(**options)
    train(model, diloco, range(10))
    states = everybodys_objects(diloco.state_dict())
    shared = diloco.shared_weights
    lacking = sum_over_ranks(flat(diloco.residuals.values())) / 3
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return
    again, resumed = made(**options, group=pair)
    resumed.load_state_dict(states)
    for name, value in resumed.shared_weights.items():
        assert_bits(value, shared[name], name)
    total = flat(resumed.residuals.values()).double()
    dist.all_reduce(total, group=pair)
    torch.testing.assert_close(total / 2, lacking)
    # What was on the way is sent again by the next step.
    assert [f["due"] for f in resumed.state_dict()["fragments"]] == [10, 12]
    train(again, resumed, range(10, 16))
    assert resumed.steps == 16


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sync_every", [3, q7x2.policy.PostLocal(2, 3)], ids=["int", "interval"])
def test_states_with_the_names_of_0_1_0a1_are_read(sync_every: Any) -> None:
    _, diloco = made(sync_every=sync_every)
    state = diloco.state_dict()
    recipe = dict(state["recipe"])
    assert recipe["sync_every"] in (3, "PostLocal(start=2, sync_every=3)")
    every = recipe.pop("sync_every")
    recipe["every"] = every if isinstance(every, int) else "PostLocal(start=2, every=3)"
    diloco.load_state_dict({**state, "recipe": recipe})
    recipe["every"] = 4
    with pytest.raises(q7x2.hooks.HookStateError, match="another DiLoCo: sync_every was 4"):
        diloco.load_state_dict({**state, "recipe": recipe})


@pytest.mark.ranks(2)
def test_distributed_checkpoint(shared: str) -> None:
    model, before = made(**STREAMING)
    train(model, before, range(4))
    _, after = made(**STREAMING)
    dcp.save({"outer": before}, checkpoint_id=shared)
    dcp.load({"outer": after}, checkpoint_id=shared)
    assert after.steps == 4
    assert_equal(before, after)


@pytest.mark.ranks(1)
def test_states_that_do_not_fit_are_refused() -> None:
    model, diloco = made(**STREAMING)
    train(model, diloco, range(4))
    good = diloco.state_dict()

    def refused(because: str, state: Any = good, **changes: Any) -> None:
        before = diloco.state_dict()
        with pytest.raises(q7x2.hooks.HookStateError, match=because):
            diloco.load_state_dict({**state, **changes} if changes else state)
        after = diloco.state_dict()
        for part in ("shared", "local"):
            was, now = flattened(before[part]), flattened(after[part])
            assert all(torch.equal(tensor, now[name]) for name, tensor in was.items())
        assert after["fragments"] == before["fragments"]

    refused("expected the state of a DiLoCo", state={"weight": torch.zeros(1)})
    refused("expected a state of version 1, got 7", version=7)
    refused("overlap was 2 and is 3", recipe={**good["recipe"], "overlap": 2})
    refused("shape of last.bias was '9'", shapes={**good["shapes"], "last.bias": "9"})
    refused("expected the state of rank_0", local={"rank_1": good["local"]["rank_0"]})
    refused("those of ranks .1. are missing", world_size=2)
    refused("position missing", state={k: v for k, v in good.items() if k != "position"})
    wrong = copy.deepcopy(good)
    del wrong["shared"]["arrived"]["convolution.weight"]
    refused("expected the arrived of convolution.weight, of shape .* got nothing", state=wrong)
    refused("not of one moment", state=[good, {**good, "step": 5}])
