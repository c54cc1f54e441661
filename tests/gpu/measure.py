"""The stages that measure: they run a program per case, and make a table of what it says."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from tests.gpu.build import package_environment, program
from tests.gpu.runner import Result, Session, StageFailed

KERNEL_GOAL = 0.7  # of a copy of the same bytes: encode, and decode and add
RANKS_GOAL = 2.0  # int4 beside dense
_TURNS = 2
_TRAINING_LIMIT_S = 90  # of one training, so that one that hangs leaves time for the others


def kernels(session: Session) -> Result:
    """Measure each kernel of each codec beside a copy that moves as many bytes."""
    said = session.call(program(session, "q7x2_gpu_kernels_bench"))
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return Result({"rows": rows, "goal": KERNEL_GOAL}, kernels_table(rows))


def kernels_table(rows: list[dict[str, Any]]) -> str:
    """Return a row per codec, with the fraction of the copy's rate that each kernel reaches."""
    calls = list(dict.fromkeys(row["call"] for row in rows))
    lines = [
        "The rate of each kernel as a fraction of a device-to-device copy that reads and writes as "
        f"many bytes. The goal for encoding, and for decoding and adding, is {KERNEL_GOAL:g}.",
        "",
        f"| codec | {' | '.join(calls)} |",
        "| --- |" + " --- |" * len(calls),
    ]
    for codec in dict.fromkeys(row["codec"] for row in rows):
        shares = {row["call"]: row["share"] for row in rows if row["codec"] == codec}
        cells = [f"{shares[call]:.2f}" if call in shares else "-" for call in calls]
        lines.append(f"| `{codec}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ranks(session: Session) -> Result:
    """Measure an all-reduce of 256 MB by four ranks on one GPU, with int4 and without."""
    found = _program(session, "ranks")
    seconds = found["seconds"]
    ratio = seconds["dense"] / seconds["int4"]
    table = (
        f"All-reduce of {found['bytes'] / 1e6:.0f} MB of fp32 by {found['ranks']} ranks on one GPU."
        f" int4 is {ratio:.2f} times as fast as dense; the goal is {RANKS_GOAL:g}.\n\n"
        "| | seconds, median | relative error |\n| --- | --- | --- |\n"
        f"| dense | {seconds['dense']:.4f} | {found['errors']['dense']:.2g} |\n"
        f"| int4 | {seconds['int4']:.4f} | {found['errors']['int4']:.2g} |\n"
    )
    return Result({**found, "ratio": ratio, "goal": RANKS_GOAL}, table)


def ddp(session: Session) -> Result:
    """Measure a step of a Transformer under DistributedDataParallel."""
    return _training(session, "ddp")


def fsdp(session: Session) -> Result:
    """Measure a step of a Transformer under FSDP2."""
    return _training(session, "fsdp")


def _training(session: Session, what: str) -> Result:
    cases = _program(session, "training", "--cases", what)["cases"]
    rows, problems = [], []
    for _ in range(_TURNS):  # a slow phase of the machine meets all cases alike
        for case in cases:
            try:
                arguments = ("--what", what, "--case", case)
                found = _program(session, "training", *arguments, limit_s=_TRAINING_LIMIT_S)
            except StageFailed as failed:
                # What another backend cannot do is a result; that q7x2 fails is none.
                if case.startswith("q7x2"):
                    raise
                problems.append(f"{case}: {failed}")
                continue
            rows.append(found)
    return Result({"rows": rows, "problems": problems}, training_table(what, rows, problems))


def training_table(what: str, rows: list[dict[str, Any]], problems: list[str]) -> str:
    """Return a row per case with the fastest of its runs."""
    first = rows[0]
    lines = [
        f"A step of a Transformer of {first['parameters'] / 1e6:.0f} million parameters with "
        f"{what}, {first['ranks']} ranks on {first['gpus']} GPUs.",
        "",
        "| | seconds per step, median | loss |",
        "| --- | --- | --- |",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        best = min((r for r in rows if r["case"] == case), key=lambda row: row["seconds"])
        lines.append(f"| {case} | {best['seconds']:.4f} | {best['loss']:.4f} |")
    return "\n".join([*lines, "", *problems]) + "\n"


def _program(
    session: Session, part: str, *arguments: str, limit_s: float = math.inf
) -> dict[str, Any]:
    """Run a part of speed.py, and return the JSON object that it prints last."""
    environment = package_environment(session)
    command = (sys.executable, "-m", "tests.gpu.speed", part, *arguments)
    said = session.call(*command, env=environment, limit_s=limit_s)
    objects = [line for line in said.splitlines() if line.startswith("{")]
    if not objects:
        raise StageFailed(f"{part} printed no result")
    result: dict[str, Any] = json.loads(objects[-1])
    return result
