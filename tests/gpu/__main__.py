"""`./dev gpu`: builds q7x2 for this machine's GPU, and runs all tests and benchmarks that need one.

It installs nothing and needs no network. A stage that fails does not stop the others; the exit code
is then 1. Each stage ends within ten minutes, so that a machine that is lent for short commands can
run them one by one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.harness import ROOT
from tests.gpu import machine, needs
from tests.gpu.runner import Report, run_stages
from tests.gpu.stages import STAGES
from tests.lab import command


def main(argv: list[str]) -> None:
    names = [stage.name for stage in STAGES]
    parser = argparse.ArgumentParser(
        prog="./dev gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help="some of the stages; all if none"
    )
    parser.add_argument("--list", action="store_true", help="say which stages there are")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build/gpu/results", help="a folder for the results"
    )
    args = parser.parse_args(argv)
    if args.list:
        for stage in STAGES:
            print(f"{stage.name:10} {stage.what} (at most {stage.limit_s:g} s)")
        return
    unknown = [name for name in args.stages if name not in names]
    if unknown:
        raise ValueError(f"no stage {', '.join(unknown)}; there are {', '.join(names)}")

    problem = needs.driver_problem()
    if problem is not None:
        raise ValueError(f"./dev gpu needs a machine with an NVIDIA GPU; {problem}")
    missing = needs.missing()
    if missing:
        lines = "\n  ".join(missing)
        raise ValueError(
            f"this machine lacks what the build and the tests need:\n  {lines}\n"
            "docs/devices.md says how to bring it to a machine without network"
        )
    chosen = [stage for stage in STAGES if not args.stages or stage.name in args.stages]
    report = Report(args.out, machine.collect())
    failed = run_stages(chosen, report, ROOT / "build/gpu")
    if failed:
        raise ValueError(f"failed: {', '.join(failed)}; all output is in {report.log}")


if __name__ == "__main__":
    sys.exit(command.run(main, sys.argv[1:]))
