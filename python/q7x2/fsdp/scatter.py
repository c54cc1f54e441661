"""The reduce-scatter of one FSDP param group, started without waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from q7x2.fsdp.group_policy import GroupPolicy
from q7x2.fsdp.messages import Sum
from q7x2.fsdp.torch_internals import divisor_after, reduce_scatter_single

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from q7x2.fsdp.layout import Layout
    from q7x2.fsdp.messages import CodedReduceScatter
    from q7x2.fsdp.reductions import Member


class Scatter:
    """What FSDP calls instead of its own reduce-scatter.

    It hands the sum to `Member`, which gives it to the parameters at the end of backward.

    What goes through the codec is divided first, by all that the mean is divided by. So residuals
    are contributions to the mean, however many ranks there are::

        x = residual + gradient / ranks;  residual = x - C(x)

    Args:
        codec: What the hook's options say.
        coders: Called with a codec's name: returns the layout of the rows for it, and what sums
            them. None: nothing is compressed.
        replicas: How many replicas of the shards there are; the mean is over their ranks as well.

    Attributes:
        policy: That of the following reductions. A decision may replace it.
        measure: Is told, before each reduction, the layout, this rank's contributions to the mean
            in it, what the step before has held back, and the step.
    """

    def __init__(
        self,
        member: Member,
        *,
        codec: str,
        coders: Callable[[str], tuple[Layout, CodedReduceScatter | None]],
        memory: Residual | None,
        start_iter: int,
        random_index: int,
        replicas: int,
    ) -> None:
        self._member, self._coders = member, coders
        self._codec = codec
        self.layout, self._coded = coders(codec)
        self.policy = GroupPolicy(codec)
        self.measure: Callable[[Layout, torch.Tensor, torch.Tensor | None, int], None] | None = None
        self._replicas = replicas
        self._memory, self._start_iter, self._index = memory, start_iter, random_index
        self.gradient_bytes = 0
        self.message_bytes = 0

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        expected = self.layout.numel * self.layout.world_size
        if input_tensor.numel() != expected:
            raise RuntimeError(
                f"FSDP module {self._member.name!r}: some of its parameters got no gradient in "
                f"this backward: expected all or none of them, {expected} elements, got "
                f"{input_tensor.numel()}; set_reduce_scatter_unused_params(True) sends zeros"
            )
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise RuntimeError(f"q7x2 reduces gradients by SUM or AVG, got {op}")
        self._member.reduce(output_tensor, self._start(output_tensor, input_tensor, group, op))

    def _start(self, output: torch.Tensor, rows: torch.Tensor, group: ProcessGroup, op: Any) -> Sum:
        """Begins the sums of both parts, which end as one row on the CPU."""
        self._follow_codec()
        layout = self.layout
        # By what others divide: FSDP, and the hook between replicas.
        later = divisor_after(self._member.group, rows.dtype) * self._replicas
        ranks = layout.world_size if op == dist.ReduceOp.AVG else 1
        coded, whole = layout.pack(rows, layout.world_size, later * ranks)
        parts = []
        if layout.coded_numel:
            parts.append(self._start_coded(coded))
        if layout.whole_numel:
            parts.append(_start_whole(whole.to(rows.device), group, op))

        def result() -> torch.Tensor:
            sums = [part.result().cpu().view(1, -1) for part in parts]
            coded_sum = sums[0] if layout.coded_numel else layout.new_coded(1)
            whole_sum = sums[-1] if layout.whole_numel else whole.new_empty(1, 0)
            row = torch.empty(layout.numel)
            layout.unpack(coded_sum, whole_sum, row, later)
            return row

        if self._coded is not None:
            self.gradient_bytes += (layout.world_size - 1) * output.nbytes
            self.message_bytes += sum(part.sent_bytes for part in parts)
        return Sum([work for part in parts for work in part.works], result, 0)

    def _follow_codec(self) -> None:
        """A policy may have chosen another codec; residuals go on."""
        codec = self.policy.codec
        if codec == self._codec:
            return
        self.layout, self._coded = self._coders(codec)
        self._codec = codec
        if self._memory is not None:
            self._memory.move(self.layout)

    def _start_coded(self, rows: torch.Tensor) -> Sum:
        assert self._coded is not None
        assert self._memory is not None
        residual, step = self._memory.begin(), self._member.step
        if self.measure is not None:
            self.measure(self.layout, rows, residual, step)
        is_exact = step < self._start_iter
        if self.policy.is_skipped and not is_exact:
            assert residual is not None
            residual += rows.nan_to_num_(0, 0, 0)
            return Sum([], lambda: torch.zeros(rows.shape[1]), 0)
        return self._coded.start(
            rows, residual, step, self._index, is_exact or self.policy.is_whole
        )


def _start_whole(rows: torch.Tensor, group: ProcessGroup, op: Any) -> Sum:
    own = rows.new_empty(rows.shape[1])
    work = reduce_scatter_single(own, rows.view(-1), group=group, op=op, async_op=True)
    return Sum([work], lambda: own, (len(rows) - 1) * own.nbytes)


class Residual:
    """What the codec has lost of one param group's gradients on this rank: what the mean of all
    ranks still lacks of them.

    Args:
        is_kept: Else nothing is remembered.
        may_skip: A step may be undone, so it changes a copy.
    """

    def __init__(self, layout: Layout, is_kept: bool, may_skip: bool) -> None:
        self._layout, self._may_skip = layout, may_skip
        self._kept = layout.new_coded(layout.world_size) if is_kept else None
        self._next: torch.Tensor | None = None

    def begin(self) -> torch.Tensor | None:
        """The buffer for the codec. It goes on from an earlier reduction of the same step."""
        if self._kept is None or not self._may_skip:
            return self._kept
        if self._next is None:
            self._next = self._kept.clone()
        return self._next

    def commit(self) -> None:
        if self._next is not None:
            self._kept, self._next = self._next, None

    def abort(self, is_failure: bool) -> None:
        """Undo the step. What a failed collective left is unknown, so without a copy it is
        dropped."""
        self._next = None
        if is_failure and not self._may_skip and self._kept is not None:
            self._kept.zero_()

    def move(self, layout: Layout) -> None:
        """Go on in another layout of the same parameters."""
        if self._kept is not None:
            self._kept = self._layout.moved(self._kept, layout)
        if self._next is not None:
            self._next = self._layout.moved(self._next, layout)
        self._layout = layout

    def rescale(self, factor: float) -> None:
        if self._kept is not None:
            self._kept *= factor

    def save(self) -> dict[str, torch.Tensor]:
        return {} if self._kept is None else self._layout.parameters(self._kept)

    def load(self, parameters: dict[str, torch.Tensor]) -> None:
        if self._kept is not None:
            self._layout.fill(parameters, self._kept)
