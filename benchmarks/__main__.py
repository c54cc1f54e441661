"""`python -m benchmarks`: see README.md in this folder."""

from __future__ import annotations

import argparse
import sys

from benchmarks import bars, collectives
from benchmarks.lab import LabError
from benchmarks.lab import cli as lab
from benchmarks.launch import TrafficError
from benchmarks.processes import RanksFailed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    collectives.add_parsers(subparsers)
    bars.add_parser(subparsers)
    lab.add_parser(subparsers)
    args = parser.parse_args()
    try:
        args.handler(args)
    except (LabError, RanksFailed, TrafficError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
