"""`python -m benchmarks train`: what communication hooks do to a training's speed and accuracy.

Speed is measured on four virtual hosts with shaped links, which needs root; accuracy over several
seeds on this host. A study that was stopped goes on where it was. It ends with a report.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.harness.arguments import add_options, option
from benchmarks.studies.train.cadence import CADENCE_BY_LABEL
from benchmarks.studies.train.study import PARTS, RANKS, TASKS, Choice, Study, jobs
from benchmarks.studies.train.variants import EVERY


def main(argv: list[str]) -> None:
    labels = list(dict.fromkeys([*EVERY, *CADENCE_BY_LABEL]))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks train",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    options = {
        "parts": option(PARTS, choices=PARTS),
        "rates": ["20mbit", "100mbit", "1gbit"],
        "hosts": option([RANKS], "of the part cadence", metavar="N"),
        "task": option(TASKS, choices=TASKS),
        "seeds": 5,
        "methods": option(labels, choices=labels, metavar="LABEL"),
        "out": option(Path("bench-out/train"), "a folder", type=Path),
        "fresh": option(False, "measure the parts anew"),
    }
    add_options(parser, options)
    args = parser.parse_args(argv)

    args.out.mkdir(parents=True, exist_ok=True)
    study = Study(args.out / "train.json", args.parts if args.fresh else ())
    choice = Choice(args.parts, args.rates, args.task, args.seeds, args.methods, args.hosts)
    left = [(job, missing) for job in jobs(choice) if (missing := len(study.missing(job)))]
    for number, (job, missing) in enumerate(left, 1):
        print(f"job {number} of {len(left)}: {job.title}, {missing} trainings", file=sys.stderr)
        study.measure(job, lambda text: print(f"  {text}", file=sys.stderr))

    from benchmarks.studies.train import pictures, report

    text = report.markdown(study, pictures.draw(study, args.out))
    (args.out / "train.md").write_text(text)
    print(text)
