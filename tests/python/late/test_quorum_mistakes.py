"""Wrong options of a QuorumSGD, and steps that cannot be closed."""

from __future__ import annotations

from datetime import timedelta

import pytest
import q7x2
import torch.distributed as dist
from quorum_training import backward, made, net, train
from values import assert_same_on_all_ranks, flat

ONLY_Q7X2 = pytest.mark.beyond("gloo", "has no quorum")


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_mistakes_raise_when_it_is_made() -> None:
    for error, options in (
        ("need must be at least 2", {"need": 1}),
        ("need must be at most 3", {"need": 4}),
        ("need must be None with copies", {"need": 2, "copies": 2}),
        ("copies must be at most 3", {"copies": 4}),
        ("grace must not be negative", {"grace": -1.0}),
        ("takeover must be positive", {"takeover": 0.0}),
        ("timeout must be positive", {"timeout": 0.0}),
        ("timeout must be positive", {"timeout": timedelta(0)}),
        ("late must be one of drop, keep", {"late": "lose"}),
        ("'drop' with copies", {"late": "keep", "copies": 2}),
        ("the same QuorumSGD, but rank 0", {"need": 2 + (dist.get_rank() == 1)}),
    ):
        with pytest.raises(ValueError, match=error):
            made(**options)
    with pytest.raises(TypeError, match="optimizer must be of type Optimizer"):
        q7x2.late.QuorumSGD(net(), None)  # type: ignore[arg-type]


@ONLY_Q7X2
@pytest.mark.ranks(2)
def test_two_ranks_are_no_quorum() -> None:
    with pytest.raises(ValueError, match="a quorum needs 3 to 62 ranks, got 2"):
        made()


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_a_step_without_enough_ranks_raises_at_its_timeout_and_can_be_tried_again() -> None:
    model, quorum = made(need=3, timeout=timedelta(seconds=0.5))
    backward(model, quorum)
    if dist.get_rank() != 2:
        with pytest.raises(TimeoutError, match=r"step 0 timed out after 0\.5 s, waiting for .* 2"):
            quorum.step()
    quorum.timing.timeout = 40.0
    dist.barrier()
    train(model, quorum, 2)
    quorum.finish()
    assert_same_on_all_ranks([flat(model)])
