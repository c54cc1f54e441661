"""Messages from any rank to any other, in a group of their own, received as they come.

A message is a header of a few whole numbers, and perhaps a payload of bytes behind it. One receive
per peer waits for its next header at all times. What arrives is put into a queue by the thread that
completes it, so waiting for the first of several ranks costs no polling::

    isend header, isend payload  -->  header's receive --> payload's receive --> queue
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from q7x2._core.groups import group_like

_HEADER_TAG, _PAYLOAD_TAG = 0, 1
_MOST_SENDS = 64
_FOR_EVER = timedelta(days=3650)  # a receive waits for a rank that computes or is stopped


@dataclass(frozen=True)
class Letter:
    """A message that has arrived.

    Attributes:
        header: The numbers, without the length of the payload.
        payload: A vector of uint8; None if there is none.
    """

    sender: int
    header: list[int]
    payload: Tensor | None


Inbox = queue.SimpleQueue[Callable[[], Letter | None]]
"""What has arrived, as functions that the receiver calls; they may raise. Any thread may add."""


class Mail:
    """The messages of one rank.

    All ranks of ``group`` make it together. One thread at a time uses it.

    Args:
        group: Of q7x2. Messages travel in a new group with the same ranks.
        width: Numbers of a header.
        inbox: Where messages arrive; several Mails of one thread may share it. None: a new one.
        most_sends: Unfinished sends to a rank that does not take them, beyond which messages to it
            are dropped.

    Attributes:
        inbox: Where messages arrive.
    """

    def __init__(
        self,
        group: ProcessGroup,
        width: int,
        inbox: Inbox | None = None,
        most_sends: float = _MOST_SENDS,
    ) -> None:
        self._width, self._most_sends = width, most_sends
        self._group = group_like(group, torch.device("cpu"))
        self._group.set_timeout(_FOR_EVER)
        self.rank, self.world_size = self._group.rank(), self._group.size()
        self.peers = [rank for rank in range(self.world_size) if rank != self.rank]
        self.inbox: Inbox = queue.SimpleQueue() if inbox is None else inbox
        # By peer: sends that are not complete, with what must stay until they are.
        self._sends: dict[int, list[tuple[Any, Tensor]]] = {peer: [] for peer in self.peers}
        self._payloads: dict[int, Any] = {}
        for peer in self.peers:
            self._await_header(peer)

    def send(self, peer: int, header: Sequence[int], payload: Tensor | None = None) -> None:
        """Begin to send; a message to a rank that takes none for long is dropped.

        Args:
            payload: A contiguous vector of uint8, which must not change any more.
        """
        self._forget_sent(peer)
        if len(self._sends[peer]) >= self._most_sends:
            return
        length = 0 if payload is None else payload.numel()
        numbers = torch.tensor([*header, length], dtype=torch.int64)
        self._post(peer, numbers, _HEADER_TAG)
        if payload is not None and length:
            self._payloads[peer] = self._post(peer, payload, _PAYLOAD_TAG)
            taken = self._payloads[peer].get_future()
            taken.add_done_callback(lambda _: self.inbox.put(lambda: None))

    def is_loading(self, peer: int) -> bool:
        """Whether a payload to ``peer`` is not complete yet."""
        work = self._payloads.get(peer)
        return work is not None and not work.is_completed()

    def receive(self, seconds: float) -> Letter | None:
        """The next message of the inbox, or None if none has come, or a payload has been taken.

        Raises torch.distributed.DistBackendError if the group has failed.
        """
        try:
            arrived = self.inbox.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        return arrived()

    def leave(self) -> None:
        """Wait until all ranks have come here and all that they sent has been taken."""
        for sends in self._sends.values():
            for work, _ in sends:
                work.wait()
            sends.clear()
        dist.barrier(group=self._group)

    def _post(self, peer: int, data: Tensor, tag: int) -> Any:
        work = dist.isend(data, group=self._group, group_dst=peer, tag=tag)
        self._sends[peer].append((work, data))
        return work

    def _forget_sent(self, peer: int) -> None:
        self._sends[peer] = [each for each in self._sends[peer] if not each[0].is_completed()]

    def _await_header(self, peer: int) -> None:
        self._await(peer, torch.empty(self._width + 1, dtype=torch.int64), _HEADER_TAG, [])

    def _await(self, peer: int, data: Tensor, tag: int, header: list[int]) -> None:
        work = dist.irecv(data, group=self._group, group_src=peer, tag=tag)
        assert work is not None
        arrived = partial(self._arrived, peer, work, data, header)
        work.get_future().add_done_callback(lambda _: self.inbox.put(arrived))

    def _arrived(self, peer: int, work: Any, data: Tensor, header: list[int]) -> Letter | None:
        work.wait()
        if header:
            return Letter(peer, header, data)
        *numbers, length = data.tolist()
        self._await_header(peer)
        if not length:
            return Letter(peer, numbers, None)
        self._await(peer, torch.empty(length, dtype=torch.uint8), _PAYLOAD_TAG, numbers)
        return None
