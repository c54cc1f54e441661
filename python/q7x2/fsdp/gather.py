"""All-gathers of weights for FSDP2: rounded to bf16, or as differences.

Differences::

    what all ranks hold of the weights:  reference   = | rank 0's shard | rank 1's | ... |
    the owner of a shard sends:          C(weights - its part of the reference)
    every rank, the owner too:           reference  += what it has decoded; gives it to FSDP

All ranks decode the same bytes and add them to the same numbers, so the gathered weights are
bit-identical. What a codec loses is still part of the next difference, so errors do not pile up
(Seide et al., 2014, with the decoder's state as the reference; Richtarik et al., EF21, 2021).

A message ends with a flag: "my part needs a refresh". If any rank has set it, all ranks see it in
the same messages, and gather the weights whole. It is set when the difference is not small beside
the weights, or not finite, or after ``load_state_dict``. Weights change after their gradients were
reduced. Until then a forward sends the flag alone, which says whether the shard has changed since;
a backward sends nothing, because autograd needs the weights of the forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from q7x2._core.extension import load
from q7x2._core.random_keys import key_of
from q7x2.fsdp.torch_internals import all_gather_single, in_backward

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from q7x2.fsdp.layout import Layout
    from q7x2.fsdp.options import Sharded

# A difference of more than this share of the weights (L2) is no step of a training.
_LARGEST_CHANGE = 0.5
_ALIGNMENT = 16  # bytes, of the parts of a message


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


class Counts:
    """What :class:`ShardedStats` says of weights."""

    def __init__(self) -> None:
        self.weight_bytes = 0
        self.weight_message_bytes = 0
        self.gathers = 0
        self.repeats = 0
        self.refreshes = 0


class _Gathering(dist.Work):
    """A gather under way: FSDP waits before it reads the output."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: Any = None) -> bool:
        finish, self._finish = self._finish, None
        if finish is not None:
            # State made while a user infers is changed when he trains.
            with torch.inference_mode(False), torch.no_grad():
                finish()
        return True


class Gather:
    """What FSDP calls instead of its own all-gather. This one sends the weights as they are.

    It does not wait, whatever FSDP says, because CPUs have no streams that order what follows.

    Args:
        group: FSDP's param group.
        before_forward: Called before a gather that is not for a backward.
    """

    def __init__(
        self,
        group: Any,
        process_group: ProcessGroup,
        counts: Counts,
        before_forward: Callable[[], None],
    ) -> None:
        self._group = group
        self._process_group = process_group
        self._counts = counts
        self._before_forward = before_forward

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        with torch.inference_mode(False):
            return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        if not in_backward(self._group):
            self._before_forward()
        if group is not self._process_group:  # resharded to fewer ranks after forward
            return all_gather_single(output_tensor, input_tensor, group=group, async_op=True)
        with torch.inference_mode(False), torch.no_grad():
            return self._start(output_tensor, input_tensor)

    def _start(self, output: torch.Tensor, row: torch.Tensor) -> Any:
        """Begins the gather; its work."""
        self._count_gather(row)
        return self._start_whole(output, row)

    def _start_whole(self, output: torch.Tensor, row: torch.Tensor) -> Any:
        self._counts.weight_message_bytes += row.nbytes
        return all_gather_single(output, row, group=self._process_group, async_op=True)

    def _count_gather(self, row: torch.Tensor) -> None:
        self._counts.gathers += 1
        self._counts.weight_bytes += row.nbytes

    @staticmethod
    def _check_float(row: torch.Tensor) -> None:
        if not row.is_floating_point():
            raise RuntimeError(
                f"FSDP gathers {row.dtype}: q7x2 compresses weights of one floating point "
                "dtype per module"
            )


class CastGather(Gather):
    """Sends weights as bf16; all ranks, the owner too, get the rounded ones."""

    def _start(self, output: torch.Tensor, row: torch.Tensor) -> Any:
        self._check_float(row)
        self._count_gather(row)
        if row.element_size() <= 2:
            return self._start_whole(output, row)
        rounded = output.new_empty(output.shape, dtype=torch.bfloat16)
        work = self._start_whole(rounded, row.to(torch.bfloat16))

        def finish() -> None:
            work.wait()
            output.copy_(rounded)

        return _Gathering(finish)


class DifferenceGather(Gather):
    """Sends differences; see above.

    Args:
        reductions: How often the group's gradients were reduced.
        steps: Number of steps of the training so far.
        index: Number of the param group in the model, which selects its random numbers.
    """

    def __init__(
        self,
        group: Any,
        process_group: ProcessGroup,
        counts: Counts,
        before_forward: Callable[[], None],
        *,
        layout: Layout,
        codec: Any,
        options: Sharded,
        reductions: Callable[[], int],
        steps: Callable[[], int],
        index: int,
    ) -> None:
        super().__init__(group, process_group, counts, before_forward)
        self._layout, self._codec, self._options = layout, codec, options
        self._reductions, self._steps, self._index = reductions, steps, index
        self._rank = dist.get_rank(process_group)
        self._reference: torch.Tensor | None = None  # rows of all ranks, the coded part
        self._whole: torch.Tensor | None = None  # and the other
        self._row: torch.Tensor | None = None  # this rank's, when it was gathered last
        self._seen = -1  # reductions before that
        self._wants_refresh = False

    def refresh(self) -> None:
        """Send the weights whole next time; enough if one rank says so."""
        self._wants_refresh = True

    def _start(self, output: torch.Tensor, row: torch.Tensor) -> Any:
        self._check_float(row)
        return _Gathering(self._choose(output, row))

    def _choose(self, output: torch.Tensor, row: torch.Tensor) -> Callable[[], None]:
        """What the gather has to send, begun; what ends it."""
        if in_backward(self._group) and self._row is not None:
            return self._start_repeat(output, row)
        own = row.cpu()
        is_changed = self._row is not None and not load().same_bits(own, self._row)
        self._row = own.clone() if own is row else own
        is_new = self._seen != self._reductions()
        self._seen = self._reductions()
        if self._reference is None or (is_new and self._is_refresh_due()):
            return self._start_refresh(output, row)
        if is_new or self._whole is None:
            return self._start_differences(output, row)
        return self._start_flag(output, row, is_changed or self._wants_refresh)

    def _is_refresh_due(self) -> bool:
        every, steps = self._options.refresh_every, self._steps()
        return steps < self._options.start_iter or (every is not None and steps % every == 0)

    def _start_repeat(self, output: torch.Tensor, row: torch.Tensor) -> Callable[[], None]:
        """For a backward: nothing is sent."""
        if not load().same_bits(row.cpu(), self._row):
            raise RuntimeError(
                "weights were changed between a forward and its backward: autograd needs those of "
                "the forward"
            )
        self._counts.repeats += 1
        return lambda: self._give(output)

    def _start_flag(
        self, output: torch.Tensor, row: torch.Tensor, is_changed: bool
    ) -> Callable[[], None]:
        """For a forward with the weights of the last one, unless somebody has changed them."""
        message = torch.tensor([is_changed], dtype=torch.uint8)
        received, work = self._send(message, row.device)

        def finish() -> None:
            work.wait()
            if received.any():
                self._start_refresh(output, row)()
            else:
                self._counts.repeats += 1
                self._give(output)

        return finish

    def _start_refresh(self, output: torch.Tensor, row: torch.Tensor) -> Callable[[], None]:
        """The weights as they are."""
        self._counts.refreshes += 1
        self._count_gather(row)
        work = self._start_whole(output, row)

        def finish() -> None:
            work.wait()
            self._reference, self._whole = self._layout.pack(output, self._layout.world_size)
            self._wants_refresh = False

        return finish

    def _start_differences(self, output: torch.Tensor, row: torch.Tensor) -> Callable[[], None]:
        assert self._reference is not None
        differences, whole = self._layout.pack(row, 1)
        change, weights = load().subtract(differences, self._reference[self._rank])
        is_small = math.isfinite(change) and change <= _LARGEST_CHANGE**2 * weights
        key = key_of(self._options.random_seed, self._steps(), self._index)
        count = self._layout.coded_numel
        length = self._codec.max_bytes(count) if count else 0
        begin = _aligned(length)
        end = begin + whole.numel() * whole.element_size()
        message = torch.zeros(_aligned(end + 1), dtype=torch.uint8)
        if count:
            self._codec.encode(
                differences,
                message[:length],
                block=count,
                shared_key=key,
                rounding_key=key_of(key, self._rank),
            )
        message[begin:end] = whole.view(torch.uint8).view(-1)
        message[end] = int(self._wants_refresh or not is_small)
        self._count_gather(row)
        received, work = self._send(message, row.device)

        def finish() -> None:
            work.wait()
            messages = received.cpu().view(self._layout.world_size, -1)
            if messages[:, end].any():
                self._start_refresh(output, row)()
                return
            self._add(messages, length, key)
            parts = messages[:, begin:end].contiguous()
            self._whole = (
                parts.view(row.dtype)
                if whole.numel()
                else parts.new_empty(len(parts), 0, dtype=row.dtype)
            )
            self._give(output)

        return finish

    def _add(self, messages: torch.Tensor, length: int, key: int) -> None:
        assert self._reference is not None
        for message, rows in zip(messages, self._reference, strict=True):
            if length:
                self._codec.decode(
                    message[:length], [length], rows, add=True, block=len(rows), shared_key=key
                )

    def _give(self, output: torch.Tensor) -> None:
        assert self._reference is not None
        assert self._whole is not None
        self._layout.unpack(self._reference, self._whole, output)

    def _send(self, message: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Any]:
        self._counts.weight_message_bytes += message.numel()
        own = message.to(device)
        received = own.new_empty(self._layout.world_size * own.numel())
        return received, all_gather_single(received, own, group=self._process_group, async_op=True)

    def save(self) -> tuple[dict[str, torch.Tensor], bool]:
        """What all ranks hold of the parameters, by name, and whether the next gather is to send
        differences."""
        if self._reference is None or self._whole is None:
            return {}, True
        held = self._layout.parameters(self._reference, self._whole.float())
        return held, self._seen != self._reductions()

    def load(self, held: dict[str, torch.Tensor], sends_next: bool) -> None:
        """Go on from what `save` gave."""
        self._reference = self._whole = self._row = None
        self._seen = -1 if sends_next else self._reductions()
        self._wants_refresh = False
        if not held:
            return
        world_size = self._layout.world_size
        self._reference = self._layout.new_coded(world_size)
        self._whole = torch.zeros(world_size, self._layout.whole_numel)
        self._layout.fill(held, self._reference, self._whole)
