"""``python -m tests.runner``: see ``options``."""

from __future__ import annotations

import json
import sys

from . import nightly, options, quick, repeat, tied
from .binaries import binaries
from .names import Chosen, UnknownPattern, choose
from .paths import RESULTS


def main(words: list[str]) -> int:
    """Runs what the arguments ask for; returns the exit code."""
    tied.end_on_sigterm()
    split = words.index("--") if "--" in words else len(words)
    parser = options.parser()
    arguments = parser.parse_args(words[:split])
    arguments.pytest_args = words[split + 1 :]
    if arguments.nightly:
        for name in ("again", "repeat", "binary", "record"):
            if getattr(arguments, name):
                parser.error(f"--nightly does not go with --{name}")
        return nightly.run(arguments)
    for name in ("part", "fresh"):
        if getattr(arguments, name):
            parser.error(f"--{name} is for --nightly")
    try:
        chosen = choose(arguments.patterns) if arguments.patterns else None
    except UnknownPattern as error:
        parser.error(str(error))
    if arguments.binary:
        known = [binary.name for binary in binaries()]
        if arguments.binary not in known:
            parser.error(f"the programs are {', '.join(known)}, got '{arguments.binary}'")
        chosen = Chosen(cpp=[f"{arguments.binary}:*"])
    seed = options.seed_of(arguments)
    if arguments.again:
        if not (RESULTS / "last.json").exists():
            parser.error("there was no run yet, so nothing has failed")
        last = json.loads((RESULTS / "last.json").read_text())
        chosen, seed = Chosen(last["python"], last["cpp"]), last["seed"]
        if not chosen.python and not chosen.cpp:
            print("nothing failed last time")
            return 0
    if arguments.repeat:
        return repeat.run(arguments)
    outcome = quick.run(
        chosen,
        workers=arguments.workers,
        seed=seed,
        pytest_args=arguments.pytest_args,
        write_durations=arguments.record,
    )
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
