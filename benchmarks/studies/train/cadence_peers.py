"""What other projects offer for ranks that talk rarely, as the study trains with it.

Each begins with the interval's first step, has the group's ranks talk after every interval, and
keeps the weights that they share then.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

_PATIENCE = timedelta(minutes=10)


class Peer(Protocol):
    """An optimizer around the inner one.

    Attributes:
        shared: The weights after the last outer step, by name.
    """

    shared: dict[str, Tensor]

    def step(self) -> None: ...
    def close(self) -> None: ...


MakePeer = Callable[[nn.Module, torch.optim.Optimizer, int, ProcessGroup], Peer]


class _Shared:
    """Keeps a copy of a model's weights after every ``every``-th step."""

    def __init__(self, model: nn.Module, every: int) -> None:
        self._model = model
        self._every = every
        self._steps = 0
        self.shared = self._copy()

    def _copy(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._model.state_dict().items()}

    def _count(self) -> None:
        self._steps += 1
        if self._steps % self._every == 0:
            self.shared = self._copy()


class PostLocal(_Shared):
    """PyTorch's ``PostLocalSGDOptimizer`` with its ``PeriodicModelAverager``."""

    def __init__(
        self, model: nn.Module, inner: torch.optim.Optimizer, every: int, group: ProcessGroup
    ) -> None:
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        super().__init__(model, every)
        # It counts from 0, and averages when the warm-up is over.
        averager = PeriodicModelAverager(every, warmup_steps=every - 1, process_group=group)
        self._optimizer = PostLocalSGDOptimizer(inner, averager)

    def step(self) -> None:
        self._optimizer.step()
        self._count()

    def close(self) -> None:
        pass


class TorchftDiLoCo(_Shared):
    """torchft's ``DiLoCo``: each rank is a replica group of its own, on a Gloo group of torchft's.

    The outer optimizer is that of ``q7x2.cadence.DiLoCo``. Rank 0 has the lighthouse.
    """

    def __init__(
        self, model: nn.Module, inner: torch.optim.Optimizer, every: int, _: ProcessGroup
    ) -> None:
        import torchft
        from torchft.coordination import LighthouseServer
        from torchft.local_sgd import DiLoCo

        super().__init__(model, every)
        rank, size = dist.get_rank(), dist.get_world_size()
        address = _own_address()
        self._lighthouse: Any = None
        where: list[Any] = [None]
        if rank == 0:
            self._lighthouse = LighthouseServer(bind="[::]:0", min_replicas=size)
            port = self._lighthouse.address().rpartition(":")[2]
            where = [f"http://{address}:{port}"]
        dist.broadcast_object_list(where, src=0)
        self._store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        self._manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=_PATIENCE),
            load_state_dict=lambda state: None,  # nobody joins later
            state_dict=dict,
            min_replica_size=size,
            use_async_quorum=False,
            timeout=_PATIENCE,
            quorum_timeout=_PATIENCE,
            rank=0,
            world_size=1,
            store_addr=address,
            store_port=self._store.port,
            lighthouse_addr=where[0],
            replica_id=f"rank{rank}_",
            hostname=address,
            init_sync=False,
        )
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        self._inner = inner
        self._diloco = DiLoCo(
            self._manager,
            [model],
            inner,
            outer,
            every,
            pin_memory=False,
            use_bucketization=True,
        )
        self._diloco.__enter__()

    def step(self) -> None:
        self._inner.step()  # DiLoCo's hooks do the rest
        self._count()

    def close(self) -> None:
        self._diloco.__exit__(None, None, None)
        dist.barrier()  # nobody talks any more
        self._manager.shutdown(wait=False)
        dist.barrier()
        if self._lighthouse is not None:
            self._lighthouse.shutdown()


class Hivemind(_Shared):
    """hivemind's ``DecentralizedAverager`` of the weights: local SGD without a group.

    Ranks find each other by a distributed hash table, and wait a second for it each time.
    """

    def __init__(
        self, model: nn.Module, inner: torch.optim.Optimizer, every: int, _: ProcessGroup
    ) -> None:
        from hivemind import DHT
        from hivemind.averaging import DecentralizedAverager

        super().__init__(model, every)
        self._inner = inner
        size = dist.get_world_size()
        options = {
            "host_maddrs": [f"/ip4/{_own_address()}/tcp/0"],
            "auto_nat": False,
            "nat_port_map": False,
            "use_relay": False,
        }
        known: list[Any] = [None]
        if dist.get_rank() == 0:
            self._table = DHT(start=True, **options)
            known = [[str(each) for each in self._table.get_visible_maddrs()]]
        dist.broadcast_object_list(known, src=0)
        if dist.get_rank() != 0:
            self._table = DHT(known[0], start=True, **options)
        self._averager = DecentralizedAverager(
            [p.detach().clone() for p in model.parameters()],
            self._table,
            start=True,
            prefix="study",
            target_group_size=size,
            min_group_size=size,
            min_matchmaking_time=1.0,
            request_timeout=0.5,
        )

    def step(self) -> None:
        self._inner.step()
        if (self._steps + 1) % self._every == 0:
            self._average()
        self._count()

    @torch.no_grad()
    def _average(self) -> None:
        with self._averager.get_tensors() as tensors:
            for tensor, p in zip(tensors, self._model.parameters(), strict=True):
                tensor.copy_(p)
        if self._averager.step(timeout=_PATIENCE.total_seconds()) is None:
            raise RuntimeError("hivemind found no group of all ranks")
        with self._averager.get_tensors() as tensors:
            for tensor, p in zip(tensors, self._model.parameters(), strict=True):
                p.copy_(tensor)

    def close(self) -> None:
        dist.barrier()
        self._averager.shutdown()
        self._table.shutdown()


def _own_address() -> str:
    """Of the interface towards the master."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))
        return str(probe.getsockname()[0])
