"""What a study is: its options, what it measures, and what its results mean, declared in one file.

A study is a module of `benchmarks.studies` or `tests.faults`. Its docstring is the protocol. It has

- `OPTIONS`: its command line. By name a default, or an `option`. `--out` is added.
- what it measures, one of

  - `measure(args)`: returns the results, or yields them again and again as they grow
  - `rows(args)`: yields rows. With `KEY`, what names a row, rows of earlier runs stay in the file
    unless there are new ones of the same name.
  - `PARTS`: by name, functions of args, each of which returns a part of the results. `--parts` is
    added; parts that are not measured stay as the file has them.

- `lines(body)`, or `row_lines(row)` for each of the rows or cases: what the results mean, for a
  person; neither, if the study prints its results itself. `docs/site/write_figures.py` puts these
  lines into docs/.
- `rank_main(spec)`, if it needs ranks: see ranks.py
- `write_more(out, results)`, if it writes files beside the results

All files are written whenever there are new results, so a run that is stopped keeps what it has
measured. What an earlier run has measured is kept with the facts of its machine: a row as its
`machine`, a part in `machines`.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.harness import RESULTS, arguments, facts, report
from benchmarks.harness.arguments import option


def parser(study: ModuleType) -> argparse.ArgumentParser:
    """The command line of a study; the command has the name of the module."""
    package, _, name = study.__name__.rpartition(".")
    options = {"out": option(RESULTS / f"{name}.json", type=Path), **getattr(study, "OPTIONS", {})}
    if parts := getattr(study, "PARTS", None):
        options["parts"] = option(list(parts), choices=list(parts))
    return arguments.parser(f"{package.removesuffix('.studies')} {name}", study.__doc__, options)


def main(study: ModuleType, argv: list[str]) -> None:
    """Measures as the command line says, writes the results, and prints what they mean."""
    args = parser(study).parse_args(argv)
    machine = facts.collect()
    body: dict[str, Any] = {}
    for body in _bodies(study, args):
        report.write_json(args.out, machine, body)
        if hasattr(study, "write_more"):
            study.write_more(args.out, {"machine": machine, **body})
    if not body:
        return  # what was there is all that was asked for
    console = report.console()
    report.print_facts(console, machine)
    for line in [] if hasattr(study, "rows") else lines_of(study, body):
        console.print(line, markup=False)


def _bodies(study: ModuleType, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The results, whenever there are new ones."""
    earlier = json.loads(args.out.read_text()) if args.out.exists() else {}
    if hasattr(study, "PARTS"):
        machines = {name: earlier["machine"] for name in study.PARTS if name in earlier}
        machines |= earlier.get("machines", {})
        for part in args.parts:
            earlier[part] = study.PARTS[part](args)
            machines.pop(part, None)
            known = {name: earlier[name] for name in study.PARTS if name in earlier}
            yield {**known, **({"machines": machines} if machines else {})}
    elif hasattr(study, "rows"):
        key = getattr(study, "KEY", None)
        kept = earlier.get("rows", ()) if key else ()
        rows = {key(row): {"machine": earlier["machine"], **row} for row in kept}
        for row in study.rows(args):
            rows[key(row) if key else len(rows)] = row
            print(*lines_of(study, {"rows": [row]}), sep="\n", flush=True)
            yield {"rows": list(rows.values())}
    elif inspect.isgeneratorfunction(study.measure):
        yield from study.measure(args)
    else:
        yield study.measure(args)


def lines_of(study: ModuleType, body: Mapping[str, Any]) -> list[str]:
    """What results mean, for a person."""
    if hasattr(study, "lines"):
        return list(study.lines(body))
    if not hasattr(study, "row_lines"):
        return []
    rows = body["rows"] if "rows" in body else body["cases"]
    return [line for row in rows for line in study.row_lines(row)]
