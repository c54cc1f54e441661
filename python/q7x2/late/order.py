"""Rank 0 puts the gradients of all ranks in order, in a thread, also while it computes itself.

::

    rank 2   its gradient ----------------> all other ranks
             OFFER ------> rank 0's thread
                                 ENTRY 7: ranks {2} ----> all ranks, which apply it as version 8

So ranks agree about the order without a vote, and none waits for rank 0's own computation.
"""

from __future__ import annotations

import struct
import threading
from enum import IntEnum
from typing import Any

from q7x2._core.extension import load
from q7x2.late.lag import MODES
from q7x2.late.log import Applied, Log
from q7x2.late.quorum_mail import Mail

WIDTH = 5  # kind, and up to four numbers
MOST_RANKS = 62  # bits of a mask
_LONG = 3600.0  # seconds between two checks of an empty inbox


class Kind(IntEnum):
    """What ranks tell each other, and the numbers behind it."""

    GRADIENT = 1  # to all ranks, with a payload: its number, version, bits of weight and seconds
    OFFER = 2  # to rank 0: version, bits of seconds
    DONE = 3  # to rank 0: the sender offers nothing until END
    ENTRY = 4  # to all ranks: version, mask, index of the mode
    END = 5  # to all ranks: all are done, at this version
    STOP = 6  # to rank 0's thread, from rank 0
    FAILED = 7  # to rank 0, from its thread: it has ended because of an error


def bits_of(value: float) -> int:
    """The bits of a float64 as an int64, so that headers carry it exactly."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def value_of(bits: int) -> float:
    """The float64 with these bits."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def header_of(kind: Kind, *numbers: int) -> list[int]:
    """What is sent: the kind and its numbers, and zeros behind them."""
    return [int(kind), *numbers, *[0] * (WIDTH - 1 - len(numbers))]


class Order:
    """The thread of rank 0.

    Args:
        mail: Only the thread uses it from now on. Its inbox takes rank 0's own messages.
        log: Only the thread uses it.
        inbox: That of rank 0's other messages, for what the thread tells rank 0.

    Attributes:
        error: Why the thread has ended; None unless it failed.
    """

    def __init__(self, mail: Mail, log: Log, inbox: Any) -> None:
        self._mail, self._log, self._inbox = mail, log, inbox
        self._waiting: dict[int, Applied] = {}  # in the order in which they came
        self._finished: set[int] = set()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="q7x2 order", daemon=True)
        self._thread.start()

    def hear(self, kind: Kind, *numbers: int) -> None:
        """A message of rank 0 itself."""
        self._mail.inbox.put(load().PeerMessage(0, header_of(kind, *numbers)))

    def resume(self, log: Log) -> None:
        """Go on with another log; before the first message."""
        self._log = log

    def stop(self) -> None:
        """End the thread, and wait for that."""
        self.hear(Kind.STOP)
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                letter = self._mail.receive(_LONG)
                if letter is None:
                    continue
                if letter.header[0] == Kind.STOP:
                    return
                self._take(letter)
        except Exception as error:  # its rank raises it
            self.error = error
            self._inbox.put(load().PeerMessage(0, header_of(Kind.FAILED)))

    def _take(self, letter: Any) -> None:
        kind, *numbers = letter.header
        if kind == Kind.OFFER:
            version, seconds = numbers[:2]
            self._waiting[letter.sender] = Applied(letter.sender, version, value_of(seconds))
        elif kind == Kind.DONE:
            self._finished.add(letter.sender)
        while (ranks := self._log.next(list(self._waiting), self._finished)) is not None:
            mask, mode = sum(1 << rank for rank in ranks), MODES.index(self._log.mode)
            self._tell(Kind.ENTRY, self._log.version, mask, mode)
            self._log.add([self._waiting.pop(rank) for rank in ranks])
        if len(self._finished) == self._mail.world_size:
            self._finished.clear()
            self._log.settle()
            self._tell(Kind.END, self._log.version)

    def _tell(self, kind: Kind, *numbers: int) -> None:
        header = header_of(kind, *numbers)
        for peer in self._mail.peers:
            self._mail.send(peer, header)
        self._inbox.put(load().PeerMessage(0, header))
