"""The facts without which a measured figure means nothing."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, openmpi


def collect() -> dict[str, Any]:
    """Machine, software and state of the checkout, ready for JSON."""
    memory = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "kernel": platform.release(),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "q7x2": _version("q7x2"),
        "ucx": _version("libucx-cu13") or _version("libucx-cu12"),
        "openmpi": [each.version for each in openmpi.installations()],
    }


def describe(facts: dict[str, Any]) -> str:
    """One line for a table's caption."""
    commit = facts["commit"] or "no commit"
    return (
        f"{facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}, "
        f"torch {facts['torch']}, UCX {facts['ucx']}, q7x2 {facts['q7x2']} at {commit}"
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return model[1].strip() if model else platform.machine()


def _commit() -> str | None:
    """The short hash, with a + where tracked files differ from it; None outside a checkout."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--short", "HEAD")
    if commit is None:
        return None
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
