"""Linear layers of tensor parallelism whose messages travel while they multiply.

Rows of activations are shards along a dimension of the sequence, of equal length on all ranks.

    column   forward    y = all-gather(x) Wᵀ + b     products of the rows that have arrived
             backward   dx = reduce-scatter(dy W)    sent while dW = dyᵀ x is computed
    row      forward    y = reduce-scatter(x Wᵀ) + b sent while other rows are multiplied
             backward   dx = all-gather(dy) W        products of the rows that have arrived

Without overlap (_core/overlap_trial.py) each is one message and one product, one after the other.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from q7x2.tensor_parallel.choice import LayerStats
from q7x2.tensor_parallel.exchange import Gather, Scatter


class Column(torch.autograd.Function):
    """The weight is divided by rows: [..., shard, ..., in] to [..., rows, ..., part]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dim: int, overlap: LayerStats
    ) -> Tensor:
        begun, overlaps = time.perf_counter(), overlap.begin_forward()
        gather = Gather(x, dim, overlap.chunks if overlaps else 1, overlap.group)
        if overlaps:
            y = x.new_empty((*gather.full.shape[:-1], len(weight)))
            for rows, begins in gather:
                gather.place(y, product(rows, weight, bias), begins)
        else:
            y = product(gather.wait(), weight, bias)
        ctx.save_for_backward(gather.full if ctx.needs_input_grad[1] else None, weight)
        ctx.dim, ctx.overlap, ctx.shape, ctx.overlaps = dim, overlap, tuple(x.shape), overlaps
        overlap.count(time.perf_counter() - begun, gather.waited, is_forward=True)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        begun = time.perf_counter()
        x, weight = ctx.saved_tensors
        dim, overlap, scatter, dx = ctx.dim, ctx.overlap, None, None
        if ctx.needs_input_grad[0]:
            scatter = Scatter(ctx.shape, dim, overlap.chunks if ctx.overlaps else 1, overlap.group)
            for begins, length in scatter.order():
                scatter.put(_rows_of(dy, dim, begins, length) @ weight)
            if not ctx.overlaps:
                dx = scatter.finish(dy)
        dw = _weight_gradient(dy, x) if ctx.needs_input_grad[1] else None
        db = dy.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        if scatter is not None and dx is None:
            dx = scatter.finish(dy)
        waited = 0.0 if scatter is None else scatter.waited
        overlap.count(time.perf_counter() - begun, waited, is_forward=False)
        return dx, dw, db, None, None


class Row(torch.autograd.Function):
    """The weight is divided by columns: [..., rows, ..., part] to [..., shard, ..., out]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dim: int, overlap: LayerStats
    ) -> Tensor:
        begun, overlaps = time.perf_counter(), overlap.begin_forward()
        shape = [*x.shape[:-1], len(weight)]
        shape[dim] //= overlap.group.size()
        scatter = Scatter(tuple(shape), dim, overlap.chunks if overlaps else 1, overlap.group)
        for begins, length in scatter.order():
            scatter.put(product(_rows_of(x, dim, begins, length), weight))
        y = scatter.finish(x, bias)
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.dim, ctx.overlap, ctx.shape, ctx.overlaps = dim, overlap, tuple(x.shape), overlaps
        overlap.count(time.perf_counter() - begun, scatter.waited, is_forward=True)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        begun = time.perf_counter()
        x, weight = ctx.saved_tensors
        dim, overlap = ctx.dim, ctx.overlap
        gather = Gather(dy, dim, overlap.chunks if ctx.overlaps else 1, overlap.group)
        dx = None
        if not ctx.overlaps:
            rows = gather.wait()
            dx = rows @ weight if ctx.needs_input_grad[0] else None
        else:
            dx = dy.new_empty(ctx.shape) if ctx.needs_input_grad[0] else None
            for rows, begins in gather:
                if dx is not None:
                    gather.place(dx, rows @ weight, begins)
        dw = _weight_gradient(gather.full, x) if ctx.needs_input_grad[1] else None
        db = gather.full.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        overlap.count(time.perf_counter() - begun, gather.waited, is_forward=False)
        return dx, dw, db, None, None


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``linear`` of a matrix of all rows, which adds the bias before it rounds."""
    rows = x.reshape(-1, x.shape[-1])
    return functional.linear(rows, weight, bias).view(*x.shape[:-1], len(weight))


def _rows_of(x: Tensor, dim: int, begins: list[int], length: int) -> Tensor:
    """Rows of ``x`` from each of ``begins`` on, [begins, ...]."""
    return torch.stack([x.narrow(dim, begin, length) for begin in begins])


def _weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """One product over all rows, in the order in which a layer without overlap adds them."""
    return dy.flatten(0, -2).t() @ x.flatten(0, -2)
