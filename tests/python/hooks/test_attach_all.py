"""``Q7X2_ATTACH``: models get a hook without a line in their script."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from typing import Any

import fsdp_training
import hook_training
import pytest
import q7x2
import torch
import torch.distributed as dist
from fsdp_training import mesh_over, sharded, whole_weights
from hook_training import assert_states_equal, backward, local, net, net_of_fsdp, sgd
from q7x2._hook_text import parse_hook
from torch import nn
from torch.distributed._composable.replicate import replicate as replicate_on_ddp
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._pytree import tree_flatten
from values import assert_bits

# Trials of algorithms would round the messages of two models differently.
STEADY = {"Q7X2_ALGO": "ring", "Q7X2_REFINE": "0"}
HOOKS = {
    "int8": q7x2.Quantize("int8"),
    "PowerSGD(rank=4, start_iter=2)": q7x2.PowerSGD(rank=4, start_iter=2),
}
SHARDED = {
    "int8": q7x2.Sharded(gradients="int8"),
    'Sharded("int6:g=64", weights="bf16")': q7x2.Sharded(gradients="int6:g=64", weights="bf16"),
}


def asked_for() -> str:
    return os.environ["Q7X2_ATTACH"]


def assert_same(one: Any, other: Any) -> None:
    """Two trees of the same shape, with the same bits in tensors."""
    (leaves, shape), (others, other_shape) = tree_flatten(one), tree_flatten(other)
    assert shape == other_shape
    for left, right in zip(leaves, others, strict=True):
        if isinstance(left, torch.Tensor):
            assert_bits(left, right)
        else:
            assert left == right


def train(ddp: nn.Module, steps: range, optimizer: torch.optim.Optimizer | None = None) -> Any:
    optimizer = optimizer or sgd(ddp)
    for step in steps:
        optimizer.zero_grad()
        backward(ddp, step)
        optimizer.step()
    return [p.detach().clone() for p in ddp.parameters()]


def check_ddp() -> None:
    expected = DDP(net())
    own = q7x2.attach(expected, HOOKS[asked_for()])
    with_line = train(expected, range(5))
    ddp = DDP(net())
    with torch.no_grad():
        ddp(hook_training.batch(0, 0)[0])
    assert not q7x2.state_dict(), "a forward without gradients is no training"
    assert_same(train(ddp, range(5)), with_line)
    (state,) = q7x2.state_dict().values()
    assert_same(state, own.state_dict())


@pytest.mark.ranks(2, env=STEADY | {"Q7X2_ATTACH": "int8"})
def test_the_name_of_a_codec_is_as_good_as_the_line() -> None:
    check_ddp()


@pytest.mark.ranks(2, env=STEADY | {"Q7X2_ATTACH": "PowerSGD(rank=4, start_iter=2)"})
def test_a_hook_is_as_good_as_the_line() -> None:
    check_ddp()


def check_shards() -> None:
    expected = sharded(mesh_over("q7x2"))
    q7x2.attach(expected, SHARDED[asked_for()])
    fsdp_training.train(expected, fsdp_training.adam(expected), range(4))
    model = sharded(mesh_over("q7x2"))
    fsdp_training.train(model, fsdp_training.adam(model), range(4))
    assert_same(whole_weights(model), whole_weights(expected))
    assert len(q7x2.state_dict()) == 1


@pytest.mark.ranks(2, env=STEADY | {"Q7X2_ATTACH": "int8"})
def test_the_name_of_a_codec_compresses_the_gradients_of_shards() -> None:
    check_shards()


@pytest.mark.ranks(2, env=STEADY | {"Q7X2_ATTACH": 'Sharded("int6:g=64", weights="bf16")'})
def test_shards_are_compressed_as_asked() -> None:
    check_shards()
    with pytest.warns(UserWarning, match=r"DistributedDataParallel of Net gets no hook: Sharded"):
        train(DDP(net()), range(1))


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.ranks(2, env=STEADY | {"Q7X2_ATTACH": "int8"})
def test_compiled_models(outside: bool) -> None:
    expected = DDP(net())
    q7x2.attach(expected, q7x2.Quantize("int8"))
    model: Any = net()
    if outside:
        model = torch.compile(DDP(model), backend="eager")
    else:
        model = DDP(torch.compile(model, backend="eager"))
    assert_same(train(model, range(3)), train(expected, range(3)))
    assert list(q7x2.state_dict()) == ["0: DistributedDataParallel of Net"]


@pytest.mark.ranks(2, env=STEADY | {"Q7X2_ATTACH": "int8"})
def test_what_cannot_be_attached_is_named() -> None:
    unusual = DDP(nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.warns(UserWarning, match=r"of Linear gets no hook: the parameters are complex"):
        unusual(torch.ones(1, 2, dtype=torch.complex64))
    own = DDP(net())
    q7x2.attach(own, q7x2.OneBit())
    with contextlib.redirect_stderr(io.StringIO()) as said:
        train(own, range(2))
    assert not q7x2.state_dict()
    kept = "Q7X2_ATTACH: DistributedDataParallel of Net keeps the hook that it has"
    assert (kept in said.getvalue()) == (dist.get_rank() == 0)
    elsewhere = DDP(net(), process_group=dist.new_group(backend="gloo"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(elsewhere, range(1))
    with contextlib.redirect_stderr(io.StringIO()) as said:
        train(DDP(net()), range(1))
    attached = "DistributedDataParallel of Net on 2 ranks now has the hook int8"
    assert (attached in said.getvalue()) == (dist.get_rank() == 0)
    assert len(q7x2.state_dict()) == 1


@pytest.mark.ranks(2, env=STEADY | {"Q7X2_ATTACH": "int4"})
def test_state_goes_through_a_checkpoint() -> None:
    ddp = DDP(net())
    train(ddp, range(3))
    (state,) = q7x2.state_dict().values()

    def resume(loaded: dict[str, Any]) -> None:
        again = DDP(net(seed=1))
        again.load_state_dict(ddp.state_dict())
        q7x2.load_state_dict(loaded)
        again(hook_training.batch(0, 0)[0])

    # The second model of this process, as it would be the first one of a new process.
    second = "1: DistributedDataParallel of Net"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resume({second: state})
    assert_same(q7x2.state_dict()[second], state)
    with pytest.warns(UserWarning, match=r"no state of its hook.*save q7x2\.state_dict\(\)"):
        resume({})


TEXTS = {
    " int8 ": "int8",
    "hadamard+int4:g=128": "hadamard+int4:g=128",
    "OneBit": q7x2.OneBit(),
    "q7x2.PowerSGD(rank=4)": q7x2.PowerSGD(rank=4),
    "PowerSGD(rank=4, full_precision=['*.bias', 'last.*'])": q7x2.PowerSGD(
        rank=4, full_precision=("*.bias", "last.*")
    ),
    "Allreduce(dtype=torch.bfloat16)": q7x2.Allreduce(dtype=torch.bfloat16),
    "Sharded('int4', replica_hook=Quantize('int8'))": q7x2.Sharded(
        gradients="int4", replica_hook=q7x2.Quantize("int8")
    ),
    "TopK(ratio=0.01, start_iter=0)": q7x2.TopK(0.01, start_iter=0),
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts(text: str) -> None:
    assert parse_hook(text) == TEXTS[text]


def test_rules_of_compose() -> None:
    text = "Compose({'last.*': Quantize('int4'), '*': PowerSGD(rank=2)})"
    assert repr(parse_hook(text)) == repr(
        q7x2.Compose({"last.*": q7x2.Quantize("int4"), "*": q7x2.PowerSGD(rank=2)})
    )


WRONG = {
    "int77": "neither a codec nor a hook",
    "PowrSGD": "did you mean PowerSGD",
    "PowrSGD(rank=4)": "did you mean PowerSGD",
    "PowerSGD(rank=-1)": "PowerSGD: ",
    "PowerSGD(ranks=4)": "PowerSGD: .*ranks",
    "PowerSGD(rank=4": "expected a hook such as",
    "PowerSGD(rank=4).factory()": "no hook",
    "__import__('os').system('true')": "no hook",
    "PowerSGD(rank=len('four'))": "no hook 'len'",
    "PowerSGD(rank=torch.manual_seed)": "expected options that are numbers",
    "PowerSGD(**{'rank': 4})": r"instead of \*\*",
    "(1)": "expected a hook",
    "Quantize('int77')": "Quantize: ",
    "(" * 500: "expected a hook",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_texts(text: str) -> None:
    with pytest.raises(ValueError, match=WRONG[text]):
        parse_hook(text)


def test_state_without_the_variable() -> None:
    assert q7x2.state_dict() == {}
    q7x2.load_state_dict({})
    with pytest.raises(ValueError, match="1 hooks, but Q7X2_ATTACH is not set"):
        q7x2.load_state_dict({"0: DistributedDataParallel of Net": {}})


def names_of(state: dict[str, Any]) -> list[str]:
    return [key.split(": ")[1] for key in state]


@pytest.mark.ranks(2, env=STEADY | {"Q7X2_ATTACH": "int8"})
def test_both_kinds_of_replicate_get_the_hook() -> None:
    expected = DDP(net_of_fsdp())
    own = q7x2.attach(expected, q7x2.Quantize("int8"))
    with_line = train(expected, range(4))
    mesh = mesh_over("q7x2")
    for model in (
        replicate_on_ddp(net_of_fsdp()),
        replicate(net_of_fsdp(), mesh=mesh),
    ):
        weights = train(model, range(4))
        assert_same([local(p) for p in weights], with_line)
    states = q7x2.state_dict()
    assert names_of(states) == ["DDPNet", "ReplicateNet"]
    for state in states.values():
        assert_states_equal(state, own.state_dict())


@pytest.mark.ranks(2, env=STEADY | {"Q7X2_ATTACH": "int8"})
def test_a_script_that_attaches_to_replicate_keeps_its_hook() -> None:
    model = replicate_on_ddp(net())
    hook = q7x2.attach(model, q7x2.Allreduce())
    with contextlib.redirect_stderr(io.StringIO()) as said:
        train(model, range(1))
    assert ("DDPNet keeps the hook that it has" in said.getvalue()) == (dist.get_rank() == 0)
    assert hook.steps == 1
    assert q7x2.state_dict() == {}


@pytest.mark.ranks(4, env=STEADY | {"Q7X2_ATTACH": "int8"}, fresh=True)
def test_the_name_of_a_codec_is_that_of_the_replicas_of_hsdp() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("hosts", "shards"))
    model = sharded(mesh)
    fsdp_training.train(model, fsdp_training.adam(model), range(2))
    (state,) = q7x2.state_dict().values()
    assert state["hook"] == "Quantize"
    assert state["step"] == 2
