"""The rows of one owner, and the torch optimizer that updates those that a step touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

_check_invariants: Callable[..., AbstractContextManager[None]]
_check_invariants = torch.sparse.check_sparse_tensor_invariants
MakeOptimizer = Callable[[list[Tensor]], Optimizer]


def _check(optimizer: Optimizer) -> None:
    """Raises unless ``optimizer`` updates the touched rows of a sparse gradient and no others."""
    if type(optimizer) not in (SGD, Adagrad, SparseAdam):
        raise TypeError(
            "optimizer must make a torch.optim.SGD, Adagrad or SparseAdam, got "
            f"{type(optimizer).__name__}"
        )
    if len(optimizer.param_groups) != 1:
        raise ValueError(
            f"optimizer must have one parameter group, got {len(optimizer.param_groups)}"
        )
    (options,) = optimizer.param_groups
    for name in ("momentum", "weight_decay"):
        if options.get(name):
            raise ValueError(
                f"{name} must be 0, got {options[name]}: it would change rows that the step does "
                "not touch"
            )
    if options.get("fused"):
        raise ValueError("fused must be False: torch's fused optimizers take no sparse gradients")


class Shard:
    """The rows of this rank, of shape (owned rows, dim), with the optimizer's state for them."""

    def __init__(self, rows: Tensor, make_optimizer: MakeOptimizer | None) -> None:
        self.rows = rows
        self.optimizer: Optimizer | None = None
        if make_optimizer is None:
            return
        if not callable(make_optimizer):
            raise TypeError(
                "optimizer must be a function that makes one, such as functools.partial("
                f"torch.optim.Adagrad, lr=0.1), got {make_optimizer!r}"
            )
        optimizer = make_optimizer([rows])
        _check(optimizer)
        if isinstance(optimizer, SparseAdam):
            # As its first step does, so that a checkpoint can be loaded before that.
            zeros = {name: torch.zeros_like(rows) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[rows] = {"step": 0, **zeros}
        self.optimizer = optimizer

    @property
    def row_states(self) -> dict[str, Tensor]:
        """The optimizer's state that has one row for each row, by name."""
        state = {} if self.optimizer is None else self.optimizer.state[self.rows]
        return {name: each for name, each in state.items() if name != "step"}

    @property
    def recipe(self) -> str:
        """The optimizer and its options, as text that is equal on ranks with equal ones."""
        if self.optimizer is None:
            return "no optimizer"
        options = {k: v for k, v in self.optimizer.param_groups[0].items() if k != "params"}
        return f"{type(self.optimizer).__name__}({options})"

    def update(self, index: Tensor, gradients: Tensor) -> None:
        """Let the optimizer make one step with the gradients of some rows.

        If the optimizer raises, all rows and states are as before.

        Args:
            index: Distinct rows of this shard, ascending, int64, of shape (n,).
            gradients: Shape (n, dim), dtype of the rows.
        """
        assert self.optimizer is not None
        self.rows.grad = torch.sparse_coo_tensor(
            index[None], gradients, self.rows.shape, is_coalesced=True, check_invariants=False
        )
        try:
            # Adagrad makes sparse tensors of its own, and warns unless the checks are on or off.
            unchecked = _check_invariants(enable=False)
            with torch.no_grad(), unchecked, self._unchanged_if_it_raises(index):
                self.optimizer.step()
        finally:
            self.rows.grad = None

    @contextmanager
    def _unchanged_if_it_raises(self, index: Tensor) -> Iterator[None]:
        assert self.optimizer is not None
        tensors = [self.rows, *self.row_states.values()]
        saved = [tensor.index_select(0, index) for tensor in tensors]
        step = self.step
        try:
            yield
        except BaseException:
            for tensor, values in zip(tensors, saved, strict=True):
                tensor.index_copy_(0, index, values)
            self.step = step
            raise

    @property
    def step(self) -> int:
        """How many steps the optimizer has counted; SGD counts none."""
        state = {} if self.optimizer is None else self.optimizer.state[self.rows]
        return int(state.get("step", 0))

    @step.setter
    def step(self, value: int) -> None:
        state = {} if self.optimizer is None else self.optimizer.state[self.rows]
        if isinstance(state.get("step"), Tensor):
            state["step"].fill_(value)
        elif "step" in state:
            state["step"] = value

    def convert(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace all tensors by what ``function`` makes of them: another device or dtype."""
        self.rows.data = function(self.rows.data)
        for tensor in self.row_states.values():
            tensor.data = function(tensor.data)
