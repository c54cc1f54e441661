"""``clip_grad_norm_``: one norm over dense parameters and rows of sharded embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Clip the gradients of a model with :class:`ShardedEmbedding` modules by their common norm.

    It is ``torch.nn.utils.clip_grad_norm_`` for such a model: the norm covers the gradients of all
    parameters and of the touched rows of all embeddings. Call it on all ranks after backward and
    before the optimizer's and the embeddings' ``step()``; it pushes the embeddings' gradients.

    Args:
        model: A module, for example a DistributedDataParallel, whose gradients of parameters are
            the same on all ranks.
        max_norm: The largest norm; gradients with a larger one are scaled down to it.
        norm_type: The type of the norm; ``inf`` is the largest magnitude.

    Returns:
        The norm before clipping, a tensor of no dimensions, the same on all ranks.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: ``max_norm`` is not positive, or an embedding has a staleness.
    """
    import torch
    from torch import nn
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    from q7x2._core.option_checks import check_positive
    from q7x2.embedding.sharded import ShardedEmbedding

    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {model!r}")
    check_positive("max_norm", max_norm)
    parameters = [p for p in model.parameters() if p.grad is not None]
    embeddings = [
        module
        for module in model.modules()
        if isinstance(module, ShardedEmbedding) and module.optimizer is not None
    ]
    norms = [get_total_norm([p.grad for p in parameters if p.grad is not None], norm_type)]
    norms += [embedding.grad_norm(norm_type).to(norms[0]) for embedding in embeddings]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    clip_grads_with_norm_(parameters, max_norm, total)
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for embedding in embeddings:
        embedding.scale_grad_(factor)
    return total
