"""Trainings whose ranks talk rarely, beside DDP: one method after the other, from start to end.

The clock of a training runs through its evaluations, too. So nobody's messages travel in time that
does not count, and methods with short steps pay more for being looked at. A new method is a new
line of CADENCE_METHODS.
"""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import timing
from benchmarks.studies.train.cadence_peers import (
    Hivemind,
    MakePeer,
    Peer,
    PostLocal,
    TorchftDiLoCo,
)
from benchmarks.studies.train.methods import BASELINE
from benchmarks.studies.train.tasks import TASKS
from benchmarks.studies.train.training import Groups, Replica, sent


@dataclass(frozen=True)
class CadenceMethod:
    """Attributes:
    options: Of ``q7x2.cadence.DiLoCo``, beside the recipe's interval; None: it is not used.
    peer: What trains instead; None as well: DDP at every step.
    needs: A package that is not always there.
    """

    label: str
    backend: str
    options: dict[str, Any] | None = None
    peer: MakePeer | None = None
    needs: str = "torch"

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.needs) is not None


_AVERAGE = q7x2.cadence.OuterSGD(lr=1, momentum=0)

DILOCO = "DiLoCo"
STREAMING = "Streaming DiLoCo, int4"
SPARSE = "SparseLoCo, top 2.5 %"
CADENCE_METHODS = (
    CadenceMethod(BASELINE, "gloo"),
    CadenceMethod("PyTorch post-local SGD, Gloo", "gloo", peer=PostLocal),
    CadenceMethod("torchft DiLoCo, Gloo", "gloo", peer=TorchftDiLoCo, needs="torchft"),
    CadenceMethod("hivemind averager", "gloo", peer=Hivemind, needs="hivemind"),
    CadenceMethod("local SGD", "q7x2", {"outer": _AVERAGE}),
    CadenceMethod(DILOCO, "q7x2", {}),
    CadenceMethod(STREAMING, "q7x2", {"fragments": 4, "overlap": 7, "codec": "int4"}),
    CadenceMethod(
        SPARSE,
        "q7x2",
        {
            "outer": _AVERAGE,
            "codec": "topk:0.025:reselect+int2:minmax:g=64",
            "residual_decay": 0.95,
        },
    ),
)
CADENCE_BY_LABEL = {method.label: method for method in CADENCE_METHODS}


class CadenceTraining(Replica):
    """DDP, DiLoCo or a peer; scored are the weights that all ranks share."""

    def __init__(
        self, method: CadenceMethod, recipe: dict[str, Any], groups: Groups, seed: int
    ) -> None:
        task = TASKS[recipe.get("task", "gpt")](recipe)
        group = groups.of(method.backend)
        torch.manual_seed(seed)
        model = trained = task.model()
        self._evaluated = copy.deepcopy(model)
        inner = task.optimizer(model.parameters())
        self.diloco: q7x2.cadence.DiLoCo | None = None
        self._peer: Peer | None = None
        if method.peer is not None:
            self._peer = method.peer(model, inner, recipe["interval"], group)
        elif method.options is None:
            trained = DistributedDataParallel(
                model, process_group=group, bucket_cap_mb=recipe["bucket_mb"]
            )
        else:
            self.diloco = q7x2.cadence.DiLoCo(
                model, inner, sync_every=recipe["interval"], group=group, **method.options
            )
        self._whole = model
        super().__init__(method.label, task, trained, inner, seed)

    def update(self) -> None:
        (self.diloco or self._peer or self.optimizer).step()

    def evaluated(self) -> nn.Module:
        shared = self._peer.shared if self._peer else self._whole.state_dict()
        if self.diloco:
            shared = self.diloco.shared_weights
        self._evaluated.load_state_dict(shared, strict=self.diloco is None)
        return self._evaluated

    def close(self) -> None:
        if self._peer:
            self._peer.close()


def measure(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method as its training is done, on all ranks."""
    recipe, groups = spec["recipe"], Groups()
    for label in spec["labels"]:
        training = CadenceTraining(CADENCE_BY_LABEL[label], recipe, groups, spec["seed"])
        steps = recipe["steps"] if label != BASELINE else recipe.get("ddp_steps", recipe["steps"])
        yield {"label": label, **_train(training, steps, recipe["every"], recipe["last"])}
        training.close()


def _bytes_sent() -> float:
    return float(sent()[0])


def _sent_by_an_evaluation(training: CadenceTraining, count: int = 5) -> float:
    dist.barrier()
    before = _bytes_sent()
    for _ in range(count):
        training.score()
    dist.barrier()
    return (_bytes_sent() - before) / count


def _train(training: CadenceTraining, steps: int, every: int, last: int) -> dict[str, Any]:
    seconds, moved, held_out = [0.0], [0.0], [training.score()[0]]
    look = _sent_by_an_evaluation(training)
    begin, before = time.monotonic(), _bytes_sent()
    for step in range(1, steps + 1):
        training.step()
        if step % every == 0:
            seconds.append(time.monotonic() - begin)
            moved.append(_bytes_sent() - before - look * (len(held_out) - 1))
            held_out.append(training.score()[0])
            if dist.get_rank() == 0:
                print(f"at step {step}", flush=True)
    stats = training.diloco.stats if training.diloco else None
    waited = [stats.compute_seconds, stats.waited_seconds] if stats else [0.0, 0.0]
    means, count = timing.mean([*seconds, *moved, *waited]), len(seconds)
    return {
        "steps": steps,
        "every": every,
        "seconds": [round(each, 4) for each in means[:count]],
        "bytes": [round(each) for each in means[count : 2 * count]],
        "held_out": [round(each, 5) for each in held_out],
        "final_loss": sum(held_out[-last:]) / last,
        "compute_seconds": means[-2],
        "waited_seconds": means[-1],
        "message_bytes": stats.message_bytes if stats else None,
        "parameters": training.parameters,
    }
