#!/usr/bin/env python3
"""Writes hot_functions.ld, which puts the functions of a small call side by side in the module.

A rank that shares its processor with others meets cold caches and address translations with each
call. Then a call costs what it touches: some 360 functions of many files, which lie on as many
pages unless the linker is told. This runs calls under valgrind, and lists what they execute:

    ./dev build -DQ7X2_UNORDERED=ON
    .venv/bin/python cmake/hot_functions.py
    ./dev build -DQ7X2_UNORDERED=OFF

valgrind gives no names to functions that the last list has put aside, hence the first command.

tests/python/install/test_hot_functions.py fails when the list does not fit the module any more.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

RANKS = 4
CALLS = 1000
# Instructions of a function that is part of every call, or of every look for messages.
LEAST = 2 * CALLS
FEWEST = 150
SCRIPT = Path(__file__).with_suffix(".ld")


def rank() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("q7x2")
    small, medium = torch.zeros(1), torch.zeros(256)
    for _ in range(100):
        dist.all_reduce(small)
        dist.all_reduce(medium)
    subprocess.run(["callgrind_control", "-i", "on", str(os.getpid())], check=True)
    for _ in range(CALLS):
        dist.all_reduce(small)
        dist.all_reduce(medium)
    os._exit(0)


def profile(folder: Path) -> list[Path]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--demangle=no"]
    files = f"--callgrind-out-file={folder}/%p"
    rank = [*valgrind, files, sys.executable, __file__, "rank"]
    subprocess.run([*torchrun, f"--nproc-per-node={RANKS}", *rank], check=True)
    return list(folder.iterdir())


def functions(file: Path) -> set[str]:
    """Of the module: those that `file` has at least LEAST instructions of."""
    report = subprocess.run(
        ["callgrind_annotate", "--threshold=100", file], capture_output=True, text=True, check=True
    ).stdout
    line = re.compile(r"\s*([\d,]+) \(.*?%\)\s+\S*?:([A-Za-z_][\w.$]*)('\d+)? \[.*/_C\..*\.so\]")
    found = (line.match(each) for each in report.splitlines())
    return {hit[2] for hit in found if hit and int(hit[1].replace(",", "")) >= LEAST}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        names = sorted(set().union(*map(functions, profile(Path(folder)))))
    if len(names) < FEWEST:
        sys.exit(
            f"valgrind has named only {len(names)} functions of the module: "
            "build it with -DQ7X2_UNORDERED=ON"
        )
    # The section of a constructor or destructor is named after its second name.
    names = [re.sub(r"([CD])1E", r"\g<1>2E", name) for name in names]
    sections = "".join(f"    *(.text.{name})\n" for name in names)
    SCRIPT.write_text(
        "/* Written by hot_functions.py. */\n"
        "SECTIONS\n{\n"
        f"  .text.q7x2_hot : ALIGN(4096)\n  {{\n{sections}  }}\n"
        "}\nINSERT BEFORE .text;\n"
    )
    print(f"written: {SCRIPT}, {len(names)} functions")


if __name__ == "__main__":
    rank() if sys.argv[1:] == ["rank"] else main()
