"""Memory of each rank that the other ranks write and read without its help."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from q7x2._core.extension import load
from q7x2._core.groups import backend_of, resolve_group


class Window:
    """A tensor of each rank that all ranks of a group can write and read.

    A rank writes with ``put``, and then tells the other one with ``signal``; that one calls
    ``wait_signal`` and finds everything that was put before. What one rank puts and signals to
    another takes effect in the order of its calls. Nothing orders calls of different ranks, and
    nothing orders a ``put`` and a read of the same place without a signal between them.

    Ranks of one host copy straight into each other's memory, in one copy; see ``is_direct``.
    Between hosts, messages carry the bytes into their place.

    >>> window = q7x2.Window(torch.zeros(1024))
    >>> window.put(torch.ones(16), rank=1, offset=32)
    >>> window.signal(1)
    >>> window.wait_signal(0)  # on rank 1

    All ranks of the group must make it, and close it. The lengths may differ, the element type may
    not. ``Window.shared(1024)`` makes a tensor in memory that the ranks of a host share, in which
    ``put`` and ``get`` are quickest. Use it as a context manager to close it.

    Args:
        tensor: Contiguous, on the CPU. The window keeps it.
        group: A q7x2 group; None is the default group.

    Raises:
        TypeError: It is no such tensor.
        ValueError: The group has no q7x2 backend.
        DistBackendError: The element types of the ranks differ, or a rank has failed.
    """

    def __init__(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
        self._window = _new(group)
        self._window.open(tensor, True)
        self._tensor = tensor

    @classmethod
    def shared(
        cls,
        *sizes: int,
        dtype: torch.dtype = torch.float32,
        group: dist.ProcessGroup | None = None,
    ) -> Window:
        """A window of zeros, of that shape, in memory that the ranks of a host share.

        Args:
            *sizes: The shape, as of ``torch.zeros``.
            dtype: The element type.
            group: A q7x2 group; None is the default group.

        Raises:
            ValueError: The group has no q7x2 backend.
            DistBackendError: The element types of the ranks differ, or a rank has failed.
        """
        self = cls.__new__(cls)
        self._window = _new(group)
        self._tensor = self._window.open_shared(list(sizes), torch.empty(0, dtype=dtype))
        return self

    @property
    def tensor(self) -> Tensor:
        """This rank's tensor."""
        return self._tensor

    def is_direct(self, rank: int) -> bool:
        """Whether this rank copies into the window of ``rank`` without its help.

        So it is between ranks of one host, unless the kernel forbids it (Yama, a container) and
        the window is not a shared one.
        """
        return bool(self._window.is_direct(rank))

    def put(
        self,
        tensor: Tensor,
        rank: int,
        offset: int = 0,
        *,
        async_op: bool = False,
        timeout: timedelta | None = None,
    ) -> dist.Work | None:
        """Write the tensor into the window of ``rank``.

        Args:
            tensor: Contiguous, on the CPU, with the window's element type.
            rank: In the group.
            offset: The first element to write.
            async_op: Return a Work; the tensor must not change before it is complete.
            timeout: For the message, where there is one; None: the group's.

        Raises:
            TypeError: It is no such tensor.
            RuntimeError: It does not fit into the window there.
            DistBackendError: The rank has failed, or has closed its window.
        """
        work = self._window.put_at(tensor, rank, offset, async_op, timeout)
        return work if async_op else None

    def get(
        self,
        tensor: Tensor,
        rank: int,
        offset: int = 0,
        *,
        async_op: bool = False,
        timeout: timedelta | None = None,
    ) -> dist.Work | None:
        """Read from the window of ``rank`` into the tensor.

        Args:
            tensor: Contiguous, on the CPU, with the window's element type.
            rank: In the group.
            offset: The first element to read.
            async_op: Return a Work; the tensor has the values when it is complete.
            timeout: For the messages, where there are any; None: the group's.

        Raises:
            TypeError: It is no such tensor.
            RuntimeError: The window there is too short.
            DistBackendError: The rank has failed, or has closed its window.
        """
        work = self._window.get_from(tensor, rank, offset, async_op, timeout)
        return work if async_op else None

    def signal(
        self, rank: int, *, async_op: bool = False, timeout: timedelta | None = None
    ) -> dist.Work | None:
        """Tell ``rank`` that all that this rank has put into its window before is there.

        Args:
            rank: In the group.
            async_op: Return a Work, which is complete when the signal has been sent.
            timeout: For the message, where there is one; None: the group's.

        Raises:
            DistBackendError: The rank has failed, or has closed its window.
        """
        work = self._window.signal_to(rank, async_op, timeout)
        return work if async_op else None

    def wait_signal(
        self, rank: int, *, async_op: bool = False, timeout: timedelta | None = None
    ) -> dist.Work | None:
        """Wait for the next signal of ``rank``. Each signal ends one wait.

        A wait that fails takes no signal.

        Args:
            rank: In the group.
            async_op: Return a Work; whoever waits for it waits for the signal.
            timeout: None: the group's.

        Raises:
            DistBackendError: The timeout has passed, or the rank has failed or left.
        """
        work = self._window.await_signal(rank, async_op, timeout)
        return work if async_op else None

    def close(self) -> None:
        """End the window, on all ranks. What was put before is there when it returns."""
        self._window.close()

    def __enter__(self) -> Window:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()


def _new(group: dist.ProcessGroup | None) -> Any:
    return load().WindowQ7x2(backend_of(resolve_group(group), "Window"))
