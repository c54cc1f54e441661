"""``BlockSparse``: gradients whose zeros are left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from q7x2._core.option_checks import check_ratio
from q7x2.hooks.base import Job


@dataclass(frozen=True, kw_only=True)
class BlockSparse:
    """The exact mean, without blocks of zeros (OmniReduce, Fei et al., SIGCOMM 2021).

    The way of each gradient is chosen by its measured density. Gradients of
    ``nn.Embedding(sparse=True)`` are reduced row by row by their owners. Dense gradients with many
    blocks of zeros are reduced block by block, and the others by DDP's all-reduce. Nothing is lost,
    and the hook keeps no state.

    >>> hook = q7x2.attach(ddp, q7x2.BlockSparse())

    Args:
        dense_above: Gradients with at least this share of blocks that are not zero, of 1 KiB each,
            in the mean of the last step are all-reduced whole. More than 0, at most 1.

    Raises:
        ValueError: ``dense_above`` is out of range; or, from :func:`attach`, the group's backend is
            not q7x2.
    """

    dense_above: float = 0.8

    def __post_init__(self) -> None:
        check_ratio("dense_above", self.dense_above)

    def lanes(self, on_q7x2: bool) -> int:
        return 1

    def factory(self, job: Job) -> Any:
        from q7x2._core.extension import load

        if not job.on_q7x2:
            raise ValueError("BlockSparse needs a process group of q7x2")
        return load().block_sparse_hook(self.dense_above)

    def recipe(self) -> dict[str, Any]:
        return {"dense_above": self.dense_above}
