"""What runs in a rank process of the harness: its main loop, and its process group."""

from __future__ import annotations

import dataclasses
import datetime
import faulthandler
import importlib
import os
import signal
import sys
import time
import traceback
import warnings
from multiprocessing import connection
from typing import Any

import rank_witness


@dataclasses.dataclass(frozen=True)
class GroupSpec:
    """The default process group a body finds; ``key`` decides when a pool makes a new one."""

    backend: str
    key: str = ""
    timeout: float = 30.0
    init: str = "file"  # "file", "tcp", or "none": the body makes its own group
    device_id: str | None = None
    repeats: bool = False  # every call keeps its first algorithm, so a second run has the same bits


_rank: int | None = None


def current_rank() -> int:
    """This process's rank, also while there is no process group."""
    assert _rank is not None, "not a rank process"
    return _rank


def serve(
    rank: int,
    world_size: int,
    pipe: connection.Connection,
    witness: connection.Connection,
    log: str,
    env: dict[str, str],
) -> None:
    """A rank's main loop: run bodies until the pipe closes or None arrives."""
    global _rank
    _rank = rank
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    os.environ.update(env)
    if "Q7X2_HOST_ID" in os.environ:  # "{rank}": each rank is a host of its own
        os.environ["Q7X2_HOST_ID"] = os.environ["Q7X2_HOST_ID"].format(rank=rank)
    rank_witness.start(witness)

    import torch
    import torch.distributed as dist

    if "TORCH_DISTRIBUTED_DEBUG" in env:
        dist.set_debug_level_from_env()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")
    torch.set_num_threads(1)
    refine = os.environ.get("Q7X2_REFINE", "1")
    current: GroupSpec | None = None
    while True:
        try:
            task = pipe.recv()
        except (EOFError, ConnectionResetError):
            task = None
        if task is None:
            if dist.is_initialized():
                dist.destroy_process_group()
            return
        group: GroupSpec = task["group"]
        # The last resort when the parent is gone: dump, then leave.
        faulthandler.dump_traceback_later(task["deadline"] + 30, exit=True, file=sys.stderr)
        message: dict[str, Any] = {"kind": "ok"}
        try:
            if group != current:
                if dist.is_initialized():
                    dist.destroy_process_group()
                current = None
                os.environ["Q7X2_REFINE"] = "0" if group.repeats else refine
                if task["init"] is not None:
                    _init_group(group, task["init"], rank, world_size)
                    current = group
            torch.manual_seed(0)
            module = importlib.import_module(task["module"])
            body: Any = module
            for part in task["qualname"].split("."):
                body = getattr(body, part)
            message["value"] = body(**task["kwargs"])
        except BaseException as error:  # a rank reports SystemExit and KeyboardInterrupt as well
            message = _failure(error)
        faulthandler.cancel_dump_traceback_later()
        message["at"] = message.get("at", time.monotonic())
        pipe.send(message)


def _init_group(group: GroupSpec, url: str, rank: int, world_size: int) -> None:
    import torch
    import torch.distributed as dist

    options: dict[str, Any] = {}
    if group.device_id is not None:
        options["device_id"] = torch.device(group.device_id)
    dist.init_process_group(
        group.backend,
        init_method=url,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=group.timeout),
        **options,
    )


def _failure(error: BaseException) -> dict[str, Any]:
    import pytest

    at = time.monotonic()
    skipped = isinstance(error, pytest.skip.Exception)
    return {
        "kind": "skip" if skipped else "error",
        "error": str(error),
        "error_type": type(error).__name__,
        "trace": "".join(traceback.format_exception(error)),
        "at": at,
    }
