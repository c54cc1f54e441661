"""What `./dev gpu` needs of a machine, and which of it is missing. Nothing is installed."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

# The name, and where it comes from on Debian and Ubuntu.
TOOLS = {
    "cmake": "cmake",
    "ninja": "ninja-build",
    "pkg-config": "pkg-config",
    "c++": "build-essential",
}
LIBRARIES = {  # pkg-config's names
    "hwloc": "libhwloc-dev",
    "libzstd": "libzstd-dev",
    "gtest": "libgtest-dev",
    "nlohmann_json": "nlohmann-json3-dev",
}
PYTHON_PACKAGES = {"libucx": "libucx-cu13", "rich": "rich", "numpy": "numpy", "pytest": "pytest"}
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)


def driver_problem() -> str | None:
    """Why no CUDA program runs on this machine; None if one does."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver: the dynamic linker finds no libcuda.so.1"
    status = driver.cuInit(0)
    if status != 0:
        return f"the NVIDIA driver offers no GPU: cuInit returned {status}"
    return None


def nvcc() -> str | None:
    """Return the path of CUDA's compiler, as CMake looks for it."""
    return shutil.which(os.environ.get("CUDACXX", "nvcc"))


def missing() -> list[str]:
    """Return a line for each thing that the build and the tests need and that is not there."""
    lines = [
        f"{tool}: a program (Debian package {package})"
        for tool, package in TOOLS.items()
        if shutil.which(tool) is None
    ]
    if nvcc() is None:
        lines.append("nvcc: CUDA's compiler, on PATH or named by CUDACXX")
    lines += [
        f"{library}: a library with headers (Debian package {package}); pkg-config does not find it"
        for library, package in LIBRARIES.items()
        if not _pkg_config_knows(library)
    ]
    if sys.version_info < OLDEST_PYTHON:
        lines.append(f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer; this is {sys.version}")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        lines.append("Python.h: Python's headers (Debian package python3-dev)")
    problem = torch_problem()
    if problem is not None:
        lines.append(problem)
    lines += [
        f"{module}: a Python package ({package} on PyPI)"
        for module, package in PYTHON_PACKAGES.items()
        if importlib.util.find_spec(module) is None
    ]
    return lines


def _pkg_config_knows(library: str) -> bool:
    if shutil.which("pkg-config") is None:
        return False
    return subprocess.run(["pkg-config", "--exists", library]).returncode == 0


def torch_problem() -> str | None:
    oldest = ".".join(map(str, OLDEST_TORCH))
    wanted = f"torch: version {oldest} or newer, built with CUDA"
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return wanted
    if tuple(map(int, version.split(".")[:2])) < OLDEST_TORCH:
        return f"{wanted}; this is {version}"
    import torch

    return None if torch.version.cuda else f"{wanted}; this is {version}, without CUDA"
