#!/usr/bin/env python3
"""Compiler launcher for CUDA: keeps what ``ptxas -v`` says beside the object file.

CMake puts it before the command. The report of ``x.cu.o`` is ``x.cu.o.ptxas``. Other output of the
compiler is passed on.
"""

import subprocess
import sys
from pathlib import Path


def main(command: list[str]) -> int:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    sys.stdout.write(done.stdout)
    report = []
    for line in done.stderr.splitlines(keepends=True):
        ours = line.startswith(("ptxas info", "    "))  # the properties of a function are indented
        (report.append if ours else sys.stderr.write)(line)
    if report and done.returncode == 0 and "-o" in command:
        Path(command[command.index("-o") + 1] + ".ptxas").write_text("".join(report))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
