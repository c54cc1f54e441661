"""Builds the module and the tests against the installed torch, in a directory of their own."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from benchmarks.harness import ROOT
from tests.gpu import machine
from tests.gpu.runner import Result, Session, StageFailed

TARGETS = ("_C", "q7x2_tests", "q7x2_gpu_kernels_bench")

# An editable install of q7x2 would be found before the package in the build directory.
_SITE_CUSTOMIZE = """\
import sys

sys.meta_path = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
"""


def run(session: Session) -> Result:
    """Compile for this machine's GPUs, and make a package of the module that was compiled."""
    session.call(
        *("cmake", "-S", ROOT, "-B", session.build, "-G", "Ninja"),
        *("-DQ7X2_TESTS=ON", "-DQ7X2_INPLACE=OFF", "-DQ7X2_CUDA=ON"),
        f"-DQ7X2_CUDA_ARCHITECTURES={';'.join(machine.gpus()['capabilities'])}",
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    jobs = str(len(os.sched_getaffinity(0)))
    session.call("cmake", "--build", session.build, "-j", jobs, "--target", *TARGETS)
    make_package(session.build)
    return Result()


def make_package(build: Path) -> None:
    """Make ``build/python``, which PYTHONPATH can name: q7x2 with its entry points."""
    folder = build / "python"
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / "q7x2"
    package.mkdir(parents=True)
    sources = ROOT / "python/q7x2"
    own = [path for path in sources.iterdir() if path.suffix != ".so"]
    for path in (*own, *build.glob("_C.*.so")):
        (package / path.name).symlink_to(path)
    project = machine.project()
    metadata = folder / f"q7x2-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: q7x2\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), ""]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    (folder / "sitecustomize.py").write_text(_SITE_CUSTOMIZE)


def package_environment(session: Session) -> dict[str, str]:
    """Return the environment in which Python imports the q7x2 of this build."""
    folder = session.build / "python"
    if not list((folder / "q7x2").glob("_C.*.so")):
        raise StageFailed("the module is not built: ./dev gpu build")
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(folder), str(ROOT), *([inherited] if inherited else [])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def program(session: Session, name: str) -> Path:
    """Return the path of a program of this build."""
    path = session.build / name
    if not path.exists():
        raise StageFailed(f"{name} is not built: ./dev gpu build")
    return path
