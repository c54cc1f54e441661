"""`python -m benchmarks train`: what communication hooks do to a training's speed and accuracy.

Speed is measured on four virtual hosts with shaped links, which needs root; accuracy over several
seeds on this host. A study that was stopped goes on where it was. It ends with a report.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.studies.train.cadence import CADENCE_BY_LABEL
from benchmarks.studies.train.study import PARTS, RANKS, TASKS, Choice, Study, jobs
from benchmarks.studies.train.variants import EVERY


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks train",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    labels = list(dict.fromkeys([*EVERY, *CADENCE_BY_LABEL]))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rates", nargs="+", default=["20mbit", "100mbit", "1gbit"])
    parser.add_argument(
        "--hosts", type=int, nargs="+", default=[RANKS], metavar="N", help="of the part cadence"
    )
    parser.add_argument("--task", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=labels, default=labels, metavar="LABEL")
    parser.add_argument("--out", type=Path, default=Path("bench-out/train"), help="a folder")
    parser.add_argument("--fresh", action="store_true", help="measure the parts anew")
    args = parser.parse_args(argv)

    args.out.mkdir(parents=True, exist_ok=True)
    study = Study(args.out / "train.json", args.parts if args.fresh else ())
    choice = Choice(args.parts, args.rates, args.task, args.seeds, args.methods, args.hosts)
    _measure(study, choice)

    from benchmarks.studies.train import pictures, report

    text = report.markdown(study, pictures.draw(study, args.out))
    (args.out / "train.md").write_text(text)
    print(text)


def _measure(study: Study, choice: Choice) -> None:
    wanted = list(jobs(choice))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        total = sum(len(job.labels) for job in wanted)
        left = {id(job): len(study.missing(job)) for job in wanted}
        task = progress.add_task("training", total=total, completed=total - sum(left.values()))
        for job in wanted:
            if not left[id(job)]:
                continue
            title = job.title
            progress.update(task, description=title)

            def said(text: str, title: str = title) -> None:
                if text.startswith("measured "):
                    progress.advance(task)
                elif text.startswith("at "):
                    progress.update(task, description=f"{title}, {text}")

            study.measure(job, said)
