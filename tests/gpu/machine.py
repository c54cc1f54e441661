"""The facts of a machine with GPUs, beside those of benchmarks/harness/facts.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from benchmarks.harness import ROOT, facts
from tests.gpu import needs

# In a process of its own: a context in this one would take memory of the GPU during the stages.
_ASK = """
import ctypes, json, torch
version = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps({
    "gpus": [f"{p.name} ({p.total_memory / 2**30:.0f} GiB)" for p in properties],
    "capabilities": sorted({f"{p.major}{p.minor}" for p in properties}),
    "driver": f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}",
    "cuda": torch.version.cuda,
}))
"""


def collect() -> dict[str, Any]:
    """Machine, GPUs, software and commit, ready for JSON."""
    checkout = {"q7x2": project()["version"]}  # it need not be installed
    return {**facts.collect(), **checkout, **gpus(), "nvcc": _nvcc_version()}


def project() -> dict[str, Any]:
    """Return the table ``project`` of pyproject.toml."""
    import tomllib  # from Python 3.11 on, see needs.py

    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def gpus() -> dict[str, Any]:
    """Names and compute capabilities of the GPUs, and the CUDA of the driver and of torch."""
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True)
    if asked.returncode != 0:
        raise ValueError(f"torch cannot use the GPU:\n{asked.stderr.strip()}")
    found: dict[str, Any] = json.loads(asked.stdout)
    return found


def _nvcc_version() -> str | None:
    said = subprocess.run([str(needs.nvcc()), "--version"], capture_output=True, text=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", said)
    return found[1] if found else None
