"""What each CUDA kernel needs of a multiprocessor, as ``ptxas -v`` says, and the table of it.

The build keeps ptxas's reports beside the object files (cmake/ptxas_report.py). The table is
tests/device/kernel_resources.txt. ``python tests/python/kernel_resources.py`` writes it anew.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "build/dev/CMakeFiles/q7x2_core.dir/csrc"
CACHE = ROOT / "build/dev/CMakeCache.txt"
TABLE = ROOT / "tests/device/kernel_resources.txt"

Key = tuple[str, str]  # kernel, architecture

REPORT = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<architecture>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Needs:
    """Of one kernel on one architecture."""

    registers: int  # per thread
    shared: int  # bytes per block, static
    stack: int  # bytes per thread
    spills: int  # bytes per thread, stored and loaded


def nvcc_version() -> str | None:
    """The release of the compiler of build/dev; ``None`` if there is no build with CUDA."""
    if not CACHE.exists():
        return None
    found = re.search(r"^CMAKE_CUDA_COMPILER:[A-Z]+=(.*)$", CACHE.read_text(), re.MULTILINE)
    if found is None or found[1].endswith("NOTFOUND"):
        return None
    text = subprocess.run([found[1], "--version"], capture_output=True, text=True, check=True)
    release = re.search(r"release ([\d.]+)", text.stdout)
    assert release is not None, text.stdout
    return release[1]


def readable(mangled: list[str]) -> list[str]:
    """Names such as ``encode_groups<SymmetricSteps, Variant<16, true>>``."""
    text = "\n".join(mangled)
    names = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True)
    short = []
    for name in names.stdout.splitlines():
        name = re.sub(r"^void |q7x2::|\(anonymous namespace\)::|\((?:bool|int)\)", "", name)
        depth = 0
        for end, letter in enumerate(name):
            depth += {"<": 1, ">": -1}.get(letter, 0)
            if letter == "(" and depth == 0:
                name = name[:end]
                break
        short.append(name.replace("> >", ">>"))
    return short


def reported() -> dict[Key, Needs]:
    """What the reports of the build say."""
    mangled: list[str] = []
    architectures: list[str] = []
    all_needs: list[Needs] = []
    for report in sorted(REPORTS.rglob("*.ptxas")):
        source = report.name.removesuffix(".o.ptxas")
        if not (ROOT / "csrc" / report.parent.relative_to(REPORTS) / source).exists():
            continue
        for found in REPORT.finditer(report.read_text()):
            shared = re.search(r"(\d+) bytes smem", found["rest"])
            mangled.append(found["name"])
            architectures.append(found["architecture"])
            all_needs.append(
                Needs(
                    registers=int(found["registers"]),
                    shared=int(shared[1]) if shared else 0,
                    stack=int(found["stack"]),
                    spills=int(found["stores"]) + int(found["loads"]),
                )
            )
    keys = zip(readable(mangled), architectures, strict=True)
    return dict(zip(keys, all_needs, strict=True))


def render(version: str, all_needs: dict[Key, Needs]) -> str:
    """The table's text."""
    lines = [f"nvcc {version}", "kernel | architecture | registers | shared bytes | spilled bytes"]
    for (kernel, architecture), needs in sorted(all_needs.items()):
        numbers = f"{needs.registers} | {needs.shared} | {needs.spills}"
        lines.append(f"{kernel} | {architecture} | {numbers}")
    return "\n".join(lines) + "\n"


def committed() -> tuple[str, dict[Key, tuple[int, int, int]]]:
    """The compiler's version, and registers, shared memory and spills of each kernel."""
    version, _, *rows = TABLE.read_text().splitlines()
    table = {}
    for row in rows:
        kernel, architecture, registers, shared, spills = row.split(" | ")
        table[kernel, architecture] = (int(registers), int(shared), int(spills))
    return version.removeprefix("nvcc "), table


if __name__ == "__main__":
    found_version = nvcc_version()
    assert found_version is not None, "build with CUDA first: ./dev build"
    TABLE.write_text(render(found_version, reported()))
