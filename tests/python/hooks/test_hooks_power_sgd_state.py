"""``PowerSGDState`` has PyTorch's attributes and can be pickled; ignored parameters of the root."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import q7x2
import torch
from hook_training import SMALL_BUCKETS, attached, backward, net, parameters_of, sgd, train
from q7x2.comm_hooks import PowerSGDState, powerSGD_hook
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits


def registered(state: PowerSGDState, model: nn.Module) -> DDP:
    ddp = DDP(model, **SMALL_BUCKETS)
    ddp.register_comm_hook(state, powerSGD_hook)
    return ddp


def saved_and_loaded(state: PowerSGDState) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_it_has_the_arguments_of_pytorchs_state() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs

    given: dict[str, Any] = {
        "process_group": None,
        "matrix_approximation_rank": 3,
        "start_powerSGD_iter": 20,
        "min_compression_rate": 1.5,
        "use_error_feedback": False,
        "warm_start": False,
        "orthogonalization_epsilon": 1e-8,
        "compression_stats_logging_frequency": 7,
        "batch_tensors_with_same_shape": False,
    }
    for state in (theirs.PowerSGDState(**given), PowerSGDState(**given)):
        for name, value in given.items():
            assert getattr(state, name) == value
        assert (state.iter, state.total_numel_before_compression) == (0, 0)
        assert state.compression_stats() == (0, 0, 0)
    assert PowerSGDState(None, random_seed=5).random_seed == 5


@pytest.mark.ranks(2)
def test_a_training_goes_on_with_a_state_that_was_saved() -> None:
    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    whole = registered(state, net())
    assert state.of(whole) is state.of(whole)
    optimizer = sgd(whole)
    train(whole, optimizer, range(5))
    model = net()
    model.load_state_dict(whole.module.state_dict())
    momenta = copy.deepcopy(optimizer.state_dict())
    loaded = saved_and_loaded(state)
    assert (loaded.iter, loaded.matrix_approximation_rank) == (5, 2)
    resumed = registered(loaded, model)
    with pytest.raises(RuntimeError, match=r"call PowerSGDState\.of\(ddp\) before the first"):
        loaded._runner(torch.device("cpu"))
    loaded.of(resumed)
    other = sgd(resumed)
    other.load_state_dict(momenta)
    train(whole, optimizer, range(5, 8))
    train(resumed, other, range(5, 8))
    assert loaded.iter == state.iter == 8
    for p, q in zip(parameters_of(whole), parameters_of(resumed), strict=True):
        assert_bits(p, q)


@pytest.mark.ranks(2)
def test_without_names_it_is_saved_without_residuals_and_says_so() -> None:
    state = PowerSGDState(None, start_powerSGD_iter=4)
    backward(registered(state, net()), 0)
    with pytest.warns(UserWarning, match="without its residuals and factors"):
        loaded = saved_and_loaded(state)
    assert loaded.iter == 1
    ddp = registered(loaded, net())
    for step in range(3):
        backward(ddp, step)
    assert loaded.iter == 4
    assert loaded.start_powerSGD_iter == 4
    assert loaded.stats.message_bytes == loaded.stats.gradient_bytes
    backward(ddp, 3)
    assert loaded.stats.message_bytes < loaded.stats.gradient_bytes


class WithRoot(nn.Module):
    """Its root has parameters of its own."""

    def __init__(self, *ignored: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.layer = nn.Linear(4, 4)
        self.tied = self.layer
        self._ddp_params_and_buffers_to_ignore = list(ignored)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * self.scale)


@pytest.mark.parametrize("ignored", ["scale", ".scale", "layer.bias"])
@pytest.mark.ranks(2)
def test_attach_takes_what_ddp_reduces_of_a_model_with_ignored_parameters(ignored: str) -> None:
    import torch.distributed as dist

    x = torch.full((2, 4), 1.0 + dist.get_rank())
    plain = DDP(WithRoot(ignored))
    hooked, hook = attached(q7x2.Allreduce(), WithRoot(ignored))
    hooked.load_state_dict(plain.state_dict())
    for ddp in (plain, hooked):
        ddp(x).square().sum().backward()
    assert hook.stats.steps == 1
    for p, q in zip(plain.parameters(), hooked.parameters(), strict=True):
        assert_bits(p.grad, q.grad)
