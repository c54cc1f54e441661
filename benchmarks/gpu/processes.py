"""Ranks of a benchmark on this machine, one process each."""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable
from typing import Any

Body = Callable[[int, int, str, argparse.Namespace], dict[str, Any]]


def run_processes(body: Body, count: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Call ``body(rank, count, store, args)`` in ``count`` processes, and return all results.

    ``store`` is an ``init_method``. If a rank fails, the program ends with exit code 1.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        pipes, processes = [], []
        for rank in range(count):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (theirs, body, rank, count, f"file://{directory}/store", args)
            process = context.Process(target=_send, args=arguments, daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        outcomes = []
        for rank, pipe in enumerate(pipes):
            try:
                outcomes.append(pipe.recv())
            except EOFError:
                raise SystemExit(f"rank {rank} failed, see above") from None
        for process in processes:
            process.join()
        return outcomes


def _send(
    pipe: Any, body: Body, rank: int, count: int, store: str, args: argparse.Namespace
) -> None:
    pipe.send(body(rank, count, store, args))


def synchronize(device: Any) -> None:
    """Wait until ``device`` has done all its work."""
    import torch

    if device.type != "cpu":
        torch.accelerator.synchronize(device)
