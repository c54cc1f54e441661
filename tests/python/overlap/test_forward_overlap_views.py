"""Views that forward overlap keeps from step to step follow parameters that get other memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from forward_overlap_training import Pair, adamw, loss_of
from q7x2.overlap.views import KeptViews, copy_all
from torch import Tensor, nn
from values import assert_bits

Change = Callable[[nn.Module], None]


def new_memory(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = p.data.clone()


def shared_memory(model: nn.Module) -> None:
    model.share_memory()


def loaded(model: nn.Module) -> None:
    model.load_state_dict({name: 0.5 * value for name, value in model.state_dict().items()})


def moved_in_one_flat_tensor(model: nn.Module) -> None:
    """As tools do that keep all parameters in one buffer."""
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    parts = flat.split([p.numel() for p in parameters])
    for p, part in zip(parameters, parts, strict=True):
        p.data = part.view(p.shape)


CHANGES = [new_memory, shared_memory, loaded, moved_in_one_flat_tensor]


@pytest.mark.beyond("gloo", "a reduce-scatter sums in another order than an all-reduce")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.ranks(2)
def test_weights_are_those_of_ddp_whenever_parameters_get_other_memory(change: Change) -> None:
    pair = Pair(adamw)
    pair.train(range(4))
    for ddp, _ in pair.both():  # all-gathers of the last step are on their way
        change(ddp.module)
    pair.train(range(4, 6))
    for ddp, optimizer in pair.both():  # between backward and the step
        loss_of(ddp, 6).backward()
        change(ddp.module)
        optimizer.step()
        optimizer.zero_grad()
    pair.train(range(7, 9))
    pair.assert_equal(change.__name__)


@pytest.mark.beyond("gloo", "a reduce-scatter sums in another order than an all-reduce")
@pytest.mark.ranks(2)
def test_views_that_are_made_in_inference_serve_training() -> None:
    pair = Pair(adamw)
    pair.train(range(4))
    for ddp, _ in pair.both():
        new_memory(ddp.module)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            for ddp, _ in pair.both():
                loss_of(ddp, 4)
        pair.train(range(5, 7))
    pair.assert_equal()


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.arange(12.0).view(3, 4))


def views_over(p: nn.Parameter) -> KeptViews:
    return KeptViews([(p, 0, 5), (p, 7, 5)])


def assert_views(views: list[Tensor], p: nn.Parameter) -> None:
    """They are views of `p`: what is written through them is in it, and the other way round."""
    for view, (begin, end) in zip(views, ((0, 5), (7, 12)), strict=True):
        assert view.dtype == p.dtype
        assert view.data_ptr() == p.data_ptr() + begin * p.element_size()
        assert_bits(view, p.detach().view(-1)[begin:end])
    written = [view + 1 for view in views]
    copy_all(views, written)
    for view, (begin, end) in zip(written, ((0, 5), (7, 12)), strict=True):
        assert_bits(p.detach().view(-1)[begin:end], view)


def test_views_are_kept_while_the_memory_is_the_same() -> None:
    p = parameter()
    kept = views_over(p)
    first = kept.get()
    with torch.no_grad():
        p.mul_(2)
        p.copy_(torch.ones_like(p))
    p.grad = torch.ones_like(p)
    p.grad = None
    assert kept.get() is first
    assert_views(first, p)


def halved(p: nn.Parameter) -> None:
    p.data = p.data.half()


def same_memory_as_integers(p: nn.Parameter) -> None:
    p.requires_grad_(False)
    p.data = p.data.view(torch.int32)


def bent(p: nn.Parameter) -> None:
    """Another place of the same storage."""
    p.data = torch.cat([p.data, p.data])[3:]


def set_anew(p: nn.Parameter) -> None:
    with torch.no_grad():
        p.set_(torch.full((3, 4), 7.0))


def grown_in_place(p: nn.Parameter) -> None:
    """The storage gets other memory, and the parameter keeps the storage."""
    p.untyped_storage().resize_(1 << 20)


def in_shared_memory(p: nn.Parameter) -> None:
    p.share_memory_()


@pytest.mark.parametrize(
    "change",
    [halved, same_memory_as_integers, bent, set_anew, grown_in_place, in_shared_memory],
)
def test_views_follow_a_parameter(change: Callable[[nn.Parameter], None]) -> None:
    p = parameter()
    kept = views_over(p)
    kept.get()
    change(p)
    assert_views(kept.get(), p)


def test_views_of_a_parameter_that_is_not_contiguous_any_more_are_refused() -> None:
    p = parameter()
    kept = views_over(p)
    kept.get()
    p.data = p.data.t()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        kept.get()


def test_no_parts_have_no_views() -> None:
    """A rank may own nothing of a chunk."""
    assert KeptViews([]).get() == []
    copy_all([], [])
