"""An all-to-all of messages of a codec: encoded here, decoded where somebody waits for it."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

_BLOCK = 65536
_rounding = itertools.count()  # another key for each message that rounds at random


class _DecodingWork(dist.Work):
    """Waits for the messages, then decodes them into the result, once."""

    def __init__(self, work: Any, sent: Tensor, arrived: Tensor, decode: Any) -> None:
        super().__init__()
        self._work, self._sent, self._arrived, self._decode = work, sent, arrived, decode

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._decode is not None:
            self._work.wait(timeout) if timeout else self._work.wait()
            self._decode(self._arrived)
            self._decode = None
        return True


def start_exchange(values: Tensor, codec: Any, group: ProcessGroup) -> tuple[Tensor, Any]:
    """Part r of ``values`` goes to rank r: the result, and the work after which it is there.

    Args:
        values: Contiguous; its first dimension is shared evenly. No longer needed on return.
        codec: Its messages of equally many elements are equally long. None: no compression.
        group: The ranks.
    """
    result = torch.empty_like(values)
    if codec is None:
        work = dist.all_to_all_single(result, values.clone(), group=group, async_op=True)
        return result, work
    size = group.size()
    parts = values.detach().float().reshape(size, -1)
    count = parts.shape[1]
    blocks = max(1, -(-count // _BLOCK))
    block = max(1, -(-count // blocks))
    room = -(-count // block) * codec.max_bytes(block)
    sent = torch.empty(size, room, dtype=torch.uint8)
    lengths: list[int] = []
    for part, message in zip(parts, sent, strict=True):
        lengths = codec.encode(part, message, block=block, rounding_key=next(_rounding))
    arrived = torch.empty_like(sent)

    def decode(messages: Tensor) -> None:
        decoded = torch.empty_like(parts)
        for message, part in zip(messages, decoded, strict=True):
            codec.decode(message, lengths, part, block=block)
        result.copy_(decoded.view(result.shape))

    work = dist.all_to_all_single(arrived, sent, group=group, async_op=True)
    return result, _DecodingWork(work, sent, arrived, decode)
