"""``ShardedEmbedding``: rows lie on owner ranks; forward pulls them, ``step`` pushes gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from q7x2._core.agreement import check_agreement
from q7x2._core.ending import Ending
from q7x2._core.groups import group_like, resolve_group
from q7x2.embedding import state as state_of
from q7x2.embedding.exchange import BAD_INDEX, BAD_TENSOR, Exchange
from q7x2.embedding.row_map import RowMap
from q7x2.embedding.shard import MakeOptimizer, Shard
from q7x2.embedding.start import check_options, fill
from q7x2.embedding.updates import Updates


@dataclass(frozen=True)
class EmbeddingStats:
    """What an embedding has done on this rank since it was made.

    Attributes:
        steps: Steps whose gradients this owner has applied.
        in_flight: Pushes that are not applied yet; at most the embedding's ``staleness``.
        largest_staleness: The most steps that a push was applied after its own step.
        pulled_rows: Distinct rows that this rank asked for, over all forwards.
        pushed_rows: Distinct rows that this rank had gradients for, over all steps.
        sent_bytes: What this rank sent to other ranks: counts, indices, rows and gradients.
        wait_seconds: How long this rank has waited for pushes.
    """

    steps: int
    in_flight: int
    largest_staleness: int
    pulled_rows: int
    pushed_rows: int
    sent_bytes: int
    wait_seconds: float


class ShardedEmbedding(Ending, nn.Module):
    """An embedding table whose rows are shared out over the ranks of a process group.

    It is the parameter server of Parallax (Kim et al., EuroSys 2019): sparse parameters live on
    their owners, while dense ones are all-reduced by DDP. ``forward`` fetches the distinct rows of
    the batch, backward adds up their gradients, and :meth:`step` sends them to the owners, which
    add those of all ranks in rank order and update the touched rows. Only touched rows travel.

    >>> adagrad = functools.partial(torch.optim.Adagrad, lr=0.1)
    >>> embedding = q7x2.embedding.ShardedEmbedding(1_000_000, 64, optimizer=adagrad)
    >>> embedding(indices).sum().backward()
    >>> embedding.step()

    The constructor, ``forward``, :meth:`push`, :meth:`step`, :meth:`flush`, :meth:`finish`,
    :meth:`grad_norm` and :meth:`table` are collective: all ranks of the group call them in the same
    order. Batches may differ in length, and may be empty. As a context manager it ends by
    :meth:`finish`.

    The rows are in ``state_dict()``, but not among ``parameters()``: DDP does not reduce them, and
    optimizers and ``torch.nn.utils.clip_grad_norm_`` do not see them.

    Args:
        rows: The number of rows, at most 2**31 - 1.
        dim: Elements per row.
        group: The owners, a group that ``torch.distributed`` knows. None: the default group. The
            embedding makes a group of its own with the same ranks.
        optimizer: A function that makes the optimizer of a list of tensors, which must be a
            ``torch.optim.SGD``, ``Adagrad`` or ``SparseAdam`` without momentum and weight decay.
            The result is the attribute ``optimizer``, for learning rate schedulers. None: the rows
            are never updated.
        padding_idx: A row that is never updated and begins as zeros.
        staleness: 0: a step ends when its gradients are applied. k > 0: gradients travel in the
            background, and the owners apply those of step s in step s + k.
        average: Divide the sum of the gradients by the number of ranks, as DDP does.
        init: Fills a tensor of initial rows in place, by default with N(0, 1). For the same state
            of rank 0's random generator the table is the same with any number of ranks.
        device: Where the rows of this rank are.
        dtype: A floating point dtype; 16-bit gradients are added in float32 and rounded once.

    Raises:
        TypeError: ``optimizer`` makes something else, or ``dtype`` is not of floats.
        ValueError: An argument is out of range, or ranks have different ones. If the arguments of
            one rank are wrong, all ranks raise.
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        *,
        group: ProcessGroup | None = None,
        optimizer: MakeOptimizer | None,
        padding_idx: int | None = None,
        staleness: int = 0,
        average: bool = True,
        init: Callable[[Tensor], Any] = nn.init.normal_,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = torch.get_default_device() if device is None else torch.device(device)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        group = resolve_group(group)
        own = group_like(group, where)
        options: dict[str, Any] = {"rows": rows, "dim": dim, "dtype": dtype}
        options |= {"padding_idx": padding_idx, "staleness": staleness, "average": average}
        try:
            check_options(**options)
            row_map = RowMap(rows, own.size(), own.rank())
            local = torch.empty(row_map.end - row_map.begin, dim, device=where, dtype=dtype)
            self._shard = Shard(local, optimizer)
        except (TypeError, ValueError) as problem:
            check_agreement("ShardedEmbedding", {}, own, problem)
            raise
        options["optimizer"] = self._shard.recipe
        seed = check_agreement(
            "ShardedEmbedding",
            options,
            own,
            shared=int(torch.randint(2**62, ())),
            shared_kind=int,
        )
        self.rows, self.dim = rows, dim
        self.padding_idx, self.staleness, self.average = padding_idx, staleness, average
        self._exchange = Exchange(row_map, own, local.device)
        padding = -1 if padding_idx is None else int(row_map.positions(torch.tensor(padding_idx)))
        fill(local, row_map, init, seed, padding)
        self._updates = Updates(self._shard, self._exchange, padding, staleness, average)
        self._pulled_rows = 0

    @property
    def optimizer(self) -> Optimizer | None:
        """The torch optimizer of this rank's rows, for schedulers; call :meth:`step`, not its."""
        return self._shard.optimizer

    @property
    def stats(self) -> EmbeddingStats:
        """What it has done on this rank since it was made."""
        return EmbeddingStats(
            steps=self._updates.applied,
            in_flight=len(self._updates.in_flight),
            largest_staleness=self._updates.largest_staleness,
            pulled_rows=self._pulled_rows,
            pushed_rows=self._updates.pushed_rows,
            sent_bytes=self._exchange.sent_bytes,
            wait_seconds=self._updates.wait_seconds,
        )

    def forward(self, indices: Tensor) -> Tensor:
        """The rows of ``indices``, of shape ``(*indices.shape, dim)``; a collective call.

        Args:
            indices: int32 or int64, on the device of the rows, of any shape on each rank.

        Raises:
            IndexError: An index of any rank is out of range. All ranks raise it, and may go on.
            TypeError: A rank gave no tensor of indices. All ranks raise it, and may go on.
            torch.distributed.DistBackendError: An owner has died. The message names it.
        """
        problem = self._problem(indices)
        flat = self._shard.rows.new_empty(0, dtype=torch.int64) if problem[0] else indices.flatten()
        positions, inverse = torch.unique(self._exchange.map.positions(flat), return_inverse=True)
        counts = self._exchange.counts(positions, problem)
        pulled = self._exchange.pull(counts, positions, self._shard.rows)
        self._pulled_rows += len(positions)
        if self.optimizer is not None and torch.is_grad_enabled():
            anchor = torch.zeros((), requires_grad=True)
            looked_up = _lookup(anchor, pulled, positions, inverse, self._updates)
        else:
            looked_up = pulled.index_select(0, inverse)
        return looked_up.view(*indices.shape, self.dim)

    def _problem(self, indices: Any) -> tuple[int, int]:
        """What is wrong with a batch, for :meth:`Exchange.counts`."""
        if not isinstance(indices, Tensor) or indices.dtype not in (torch.int32, torch.int64):
            return BAD_TENSOR, 0
        if indices.device != self._exchange.device:
            return BAD_TENSOR, 0
        if indices.numel() > 0:
            low, high = (int(bound) for bound in indices.aminmax())
            if low < 0 or high >= self.rows:
                return BAD_INDEX, low if low < 0 else high
        return 0, 0

    def push(self) -> None:
        """Start to send the gradients of this step to the owners; :meth:`step` waits for them.

        :meth:`step` does it if you have not. Between the two, the network works while this rank
        computes. The gradients of all backwards since the last step are sent as one sum, so
        accumulation needs no ``no_sync()``.
        """
        self._updates.push()

    def step(self) -> None:
        """Update the rows that any rank has gradients for; a collective call.

        All ranks call it once per step, also those without gradients. With ``staleness`` k it
        applies the gradients of k steps before. If it raises, no row of this rank has changed.

        Raises:
            torch.distributed.DistBackendError: A rank has died. The message names it.
        """
        self._updates.step()

    def flush(self) -> None:
        """Apply all pushes in flight, for example before a checkpoint. All ranks call it."""
        self._updates.flush()

    def finish(self) -> None:
        """:meth:`flush` at the end of the training; all ranks call it.

        Lookups, :meth:`table` and ``state_dict()`` go on working.

        Raises:
            RuntimeError: A step has been pushed and not applied: call :meth:`step` first.
            torch.distributed.DistBackendError: A rank has died. The message names it.
        """
        self._updates.flush()
        self._updates.check_settled()

    def grad_norm(self, norm_type: float = 2.0) -> Tensor:
        """The norm of this step's gradient over all rows, the same on all ranks; a collective call.

        It pushes the gradient and waits for it. See :func:`q7x2.embedding.clip_grad_norm_`.

        Args:
            norm_type: The type of the norm; ``inf`` is the largest magnitude.

        Returns:
            The norm, a tensor of no dimensions.

        Raises:
            ValueError: ``staleness`` is not 0.
        """
        return self._updates.norm(norm_type)

    def scale_grad_(self, factor: float | Tensor) -> None:
        """Multiply this step's gradient on its owners by ``factor``, equal on all ranks.

        Raises:
            ValueError: ``staleness`` is not 0.
        """
        self._updates.gradient().mul_(factor)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of the step that has not ended, to skip it. All ranks call it.

        Pushes of earlier steps are not dropped. ``zero_grad()`` of a module that contains this one
        does not reach it; :meth:`step` leaves no gradient behind. ``set_to_none`` has no effect.
        """
        self._updates.skip()

    def table(self) -> Tensor:
        """All rows, of shape (rows, dim), on every rank; a collective call.

        Raises:
            RuntimeError: Pushes are in flight: call :meth:`flush` first.
        """
        self._updates.check_settled()
        whole: Tensor = state_of.distributed(self._shard.rows, self._exchange).full_tensor()
        everyone = torch.arange(self.rows, device=whole.device)
        return whole.index_select(0, self._exchange.map.positions(everyone))

    @torch.no_grad()
    def load_table(self, table: Tensor) -> None:
        """Take this rank's rows from a whole table; not a collective call.

        Args:
            table: All rows, of shape (rows, dim), of any dtype, on any device.

        Raises:
            ValueError: The table has another shape.
        """
        if tuple(table.shape) != (self.rows, self.dim):
            raise ValueError(
                f"expected a table of shape ({self.rows}, {self.dim}), got {tuple(table.shape)}"
            )
        mine = self._exchange.map.owned_rows(table.device)
        self._shard.rows.copy_(table.index_select(0, mine))

    def extra_repr(self) -> str:
        optimizer = None if self.optimizer is None else type(self.optimizer).__name__
        return (
            f"{self.rows}, {self.dim}, owned_rows={len(self._shard.rows)}, optimizer={optimizer}, "
            f"staleness={self.staleness}"
        )

    def __getattr__(self, name: str) -> Any:
        # torch.distributed.checkpoint.state_dict takes each key of a state for an attribute.
        if "_updates" in self.__dict__ and name in state_of.names(self._shard):
            return state_of.take(self._shard, self._exchange)[name]
        return super().__getattr__(name)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ShardedEmbedding:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._shard.convert(fn)
        self._exchange.device = self._shard.rows.device
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        self._updates.check_settled()
        state = state_of.take(self._shard, self._exchange)
        destination.update({prefix + name: value for name, value in state.items()})

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {prefix + name for name in state_of.names(self._shard)}
        others = {key: value for key, value in state_dict.items() if key not in own}
        super()._load_from_state_dict(
            others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        missing_keys.extend(sorted(own - state_dict.keys()))
        given = {key.removeprefix(prefix): state_dict[key] for key in own & state_dict.keys()}
        problems = state_of.load(given, self._shard, self._exchange.map)
        error_msgs.extend(f"{prefix}{problem}" for problem in problems)
        if not problems:
            self._updates.forget()


class _Lookup(torch.autograd.Function):
    """Rows of the batch from its distinct rows; backward gives their gradients to the updates."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        pulled: Tensor,
        positions: Tensor,
        inverse: Tensor,
        updates: Updates,
    ) -> Tensor:
        """``anchor`` requires a gradient, so that backward comes here: the rows do not."""
        ctx.save_for_backward(positions, inverse)
        ctx.updates = updates
        return pulled.index_select(0, inverse)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        positions, inverse = ctx.saved_tensors
        ctx.updates.add(positions, inverse, gradient)
        return (None,) * 5


_lookup: Callable[..., Tensor] = _Lookup.apply
