"""A host that is killed in a DiLoCo training, and joins again: the loss beside an undisturbed one.

Four ranks, each as on a host of its own, train the GPT of the study of cadence. At a third of the
steps one of them is killed. The others make a group without it and go on. At half of the steps a
new process joins: it takes the shared weights, and trains on. Each seed is also trained
undisturbed.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import q7x2
import torch
import torch.distributed as dist

from benchmarks.harness import inference, ranks, report
from benchmarks.harness.arguments import option
from benchmarks.studies.train.cadence import CADENCE_BY_LABEL, CADENCE_METHODS, STREAMING
from benchmarks.studies.train.study import RANKS, RECIPES
from benchmarks.studies.train.tasks import TASKS

VICTIM = RANKS - 1
_TIMEOUT_S = 120.0  # of a meeting, and of a collective

OPTIONS = {
    "method": option(
        STREAMING, choices=[m.label for m in CADENCE_METHODS if m.options is not None]
    ),
    "seeds": 5,
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    if args.seeds < 2:
        raise ValueError(f"--seeds must be at least 2, got {args.seeds}")
    recipe = RECIPES["cadence-accuracy"]
    runs: list[dict[str, Any]] = []
    for seed in range(args.seeds):
        for is_killed in (False, True):
            spec = {"method": args.method, "recipe": recipe, "seed": seed, "is_killed": is_killed}
            runs.append({"seed": seed, "is_killed": is_killed, **train_job(spec)})
            print(f"seed {seed}: {_sentence(runs[-1])}", flush=True)
    return {"method": args.method, "steps": recipe["steps"], **compare(runs)}


def lines(body: Mapping[str, Any]) -> list[str]:
    return [
        f"{body['method']}: the final loss differs by {body['difference']:+.4f} "
        f"({body['low']:+.4f} to {body['high']:+.4f}); the standard deviation of the seeds is "
        f"{body['spread']:.4f}"
    ]


def compare(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What a kill changes of the final loss, paired by seed, with its 95 % interval."""
    losses: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for run in runs:
        losses[run["is_killed"]][run["seed"]] = run["loss"]
    undisturbed, killed = losses
    spread = statistics.stdev(undisturbed.values())
    paired = inference.paired([killed[s] - undisturbed[s] for s in killed])
    interval = {"difference": paired.mean, "low": paired.low, "high": paired.high}
    return {**interval, "spread": spread, "runs": runs}


def _sentence(run: dict[str, Any]) -> str:
    if not run["is_killed"]:
        return f"loss {run['loss']:.4f} undisturbed"
    return (
        f"loss {run['loss']:.4f}; killed at step {run['killed_at']}, noticed after "
        f"{report.duration(run['noticed'])}, without it after {report.duration(run['left'])}, "
        f"joined again at step {run['joined_at']}"
    )


def train_job(spec: dict[str, Any]) -> dict[str, Any]:
    """One training by RANKS processes, or more if one of them is killed."""
    with tempfile.TemporaryDirectory(prefix="q7x2-rejoin-") as folder:
        result: dict[str, Any] = ranks.run(__name__, {**spec, "folder": folder}, RANKS, apart=True)
        return result


class Training:
    """Of one process; ``is_new``: of one that joins a training."""

    def __init__(self, spec: dict[str, Any], rank: int, is_new: bool) -> None:
        self._recipe, self._rank = spec["recipe"], rank
        self._board = dist.FileStore(f"{spec['folder']}/board", -1)
        self._board.set_timeout(timedelta(seconds=600))
        steps, interval = self._recipe["steps"], self._recipe["interval"]
        self._kill_at = steps // 3 if spec["is_killed"] else 0
        self._join_at = steps // 2 // interval * interval
        self._figures: dict[str, Any] = {}
        self._group = self._join() if is_new else self._meet()
        torch.manual_seed(spec["seed"])
        self._task = TASKS["gpt"](self._recipe)
        self._model = self._task.model()
        self._inner = self._task.optimizer(self._model.parameters())
        self._diloco = q7x2.cadence.DiLoCo(
            self._model,
            self._inner,
            sync_every=interval,
            group=self._group,
            **CADENCE_BY_LABEL[spec["method"]].options or {},
        )
        # A process that joins sees other windows of the text than the one that was killed.
        self._batches = self._task.batches(rank, RANKS, spec["seed"] + (1000 if is_new else 0))

    def _meet(self) -> dist.ProcessGroup:
        self._board.set(f"handle {self._rank}", q7x2.reconfigure_handle())
        handles = [self._board.get(f"handle {rank}").decode() for rank in range(RANKS)]
        return q7x2.reconfigure("start", handles, timeout=_TIMEOUT_S)

    def _join(self) -> dist.ProcessGroup:
        self._board.set("joiner", q7x2.reconfigure_handle())
        members = json.loads(self._board.get("members"))
        return q7x2.reconfigure("join", members, timeout=_TIMEOUT_S)

    def _leave(self) -> None:
        handles = q7x2.reconfigure_handles(self._group)
        del handles[VICTIM]
        self._go_on("leave", handles)

    def _take_back(self) -> None:
        members = [*q7x2.reconfigure_handles(self._group), self._board.get("joiner").decode()]
        self._board.set("members", json.dumps(members))
        self._go_on("join", members)
        self._figures["joined_at"] = self._diloco.steps

    def _go_on(self, name: str, members: list[str]) -> None:
        self._group = q7x2.reconfigure(name, members, timeout=_TIMEOUT_S, group=self._group)
        self._diloco.rebind(self._group)

    def run(self) -> dict[str, Any]:
        steps, every = self._recipe["steps"], self._recipe["every"]
        losses = []
        while self._diloco.steps < steps:
            step = self._diloco.steps
            if step == self._kill_at > 0 and self._rank == VICTIM and self._group.size() == RANKS:
                os.kill(os.getpid(), signal.SIGKILL)
            self._step(step)
            step = self._diloco.steps
            if step == self._join_at and self._group.size() < RANKS:
                self._take_back()
            if step % every == 0 and step > steps - self._recipe["last"] * every:
                losses.append(self._score())
        return {"loss": statistics.mean(losses), "killed_at": self._kill_at, **self._figures}

    def _step(self, step: int) -> None:
        for group in self._inner.param_groups:
            group["lr"] = self._recipe["lr"] * self._task.learning_rate(step)
        self._task.loss(self._model, next(self._batches)).backward()
        began = time.monotonic()
        try:
            self._diloco.step()
        except dist.DistBackendError:
            self._figures["noticed"] = time.monotonic() - began
            self._leave()
            self._figures["left"] = time.monotonic() - began
        self._diloco.zero_grad()

    def _score(self) -> float:
        """The loss of the shared weights on what is held out, of all ranks."""
        model = copy.deepcopy(self._model).eval()
        model.load_state_dict(self._diloco.shared_weights, strict=False)
        held_out = self._task.held_out(self._group.rank(), RANKS)
        return self._task.mean_score(model, held_out, self._group)[0]


def rank_main(spec: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the result of rank 0; the victim has two lives, each a process."""
    rank = int(os.environ["RANK"])
    if spec["is_killed"] and rank == VICTIM and "life" not in spec:
        ends = [_live(spec, life) for life in (1, 2)]
        if ends != [-signal.SIGKILL, 0]:
            raise RuntimeError(f"the two lives of rank {rank} ended with {ends}")
        return None
    result = Training(spec, rank, is_new=spec.get("life") == 2).run()
    return result if rank == 0 else None


def _live(spec: dict[str, Any], life: int) -> int:
    given = json.dumps({**spec, "life": life})
    program = [sys.executable, "-m", "benchmarks.harness.ranks", __name__, given, os.devnull]
    return subprocess.run(program, check=False).returncode
