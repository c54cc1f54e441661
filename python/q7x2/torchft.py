"""``ProcessGroupQ7x2``: the process group to give to a torchft ``Manager``. It needs torchft.

>>> manager = torchft.Manager(pg=q7x2.torchft.ProcessGroupQ7x2(), ...)
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from q7x2._core.option_checks import duration_of
from q7x2.groups.process_group import ProcessGroup

try:
    from torchft.process_group import ProcessGroupWrapper
except ImportError as error:
    raise ImportError(f"q7x2.torchft needs torchft (pip install torchft): {error}") from error

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store

__all__ = ["ProcessGroupQ7x2"]


class ProcessGroupQ7x2(ProcessGroupWrapper):  # type: ignore[misc, unused-ignore]
    """A torchft process group on q7x2; a new q7x2 group is made for each quorum.

    Args:
        timeout: How long a quorum's group may take to form, and how long each collective may take;
            a float means seconds.

    Raises:
        ValueError: ``timeout`` is not positive.
    """

    _pg: dist.ProcessGroup | None

    def __init__(self, timeout: timedelta | float = timedelta(seconds=60)) -> None:
        super().__init__(timeout=duration_of("timeout", timeout))

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        name = f"torchft quorum {self._quorum_id}"
        return ProcessGroup(store, rank, world_size, self._timeout, name=name)

    def shutdown(self) -> None:
        """Leave the group in good order: the other replicas see that this one has left."""
        if self._pg is not None:
            self._pg.shutdown()
        self._pg = None

    def getBackendName(self) -> str:
        """The name that torchft shows, ``"torchft-q7x2"``."""
        return "torchft-q7x2"
