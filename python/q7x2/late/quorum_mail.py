"""Messages from any rank to any other, in a group of their own, received as they come."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from q7x2._core.backends import unwrapped_backend
from q7x2._core.extension import load
from q7x2._core.groups import group_like

_FOR_EVER = timedelta(days=3650)  # a rank leaves after those that compute or are stopped
_CPU = torch.device("cpu")


class Mail:
    """The messages of one rank; csrc/late/mail.h says how they travel.

    All ranks of ``group`` make it together. One thread at a time uses it.

    Args:
        group: A q7x2 group. Messages are sent in a new group with the same ranks.
        width: Numbers of a header.
        inbox: Where messages arrive, a ``_C.MessageQueue``; several Mails of one thread may share
            it. None: a new one.
        most_sends: Unfinished sends to a rank that does not take them, beyond which messages to it
            are dropped. None: none is dropped.
        drives: Whether the thread that receives makes progress while it waits; not for one that
            waits for most of the time.

    Attributes:
        inbox: Where messages arrive.
        messages: The ``_C.Mail``.
    """

    def __init__(
        self,
        group: ProcessGroup,
        width: int,
        inbox: Any = None,
        most_sends: int | None = None,
        drives: bool = True,
    ) -> None:
        self._group = group_like(group, _CPU)
        self._group.set_timeout(_FOR_EVER)
        backend = unwrapped_backend(self._group, _CPU)
        self.rank, self.world_size = self._group.rank(), self._group.size()
        self.peers = [rank for rank in range(self.world_size) if rank != self.rank]
        self.inbox = load().MessageQueue(backend, drives) if inbox is None else inbox
        self.messages = load().Mail(backend, width, self.inbox, most_sends)

    def send(self, peer: int, header: Sequence[int], payload: Tensor | None = None) -> None:
        """Begin to send.

        Args:
            payload: A contiguous vector of uint8, which must not change any more.
        """
        self.messages.send(peer, header, payload)

    def receive(self, seconds: float) -> Any:
        """The next message of the inbox, a ``_C.PeerMessage``; None if there is no whole one yet.

        Raises torch.distributed.DistBackendError if the group has failed.
        """
        return self.messages.receive(seconds)

    def leave(self) -> None:
        """Wait until all ranks have come here and all that they sent has been taken."""
        self.messages.finish_sends()
        dist.barrier(group=self._group)
