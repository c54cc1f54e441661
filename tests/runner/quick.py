"""One run: pytest and the GoogleTest binaries side by side, while the latter are still compiled."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence

from . import durations, tied
from .binaries import WHOLE, binaries, targets
from .built import Builder
from .cpp import CppRun
from .names import Chosen
from .paths import RESULTS, ROOT
from .shard import CppResult

# What Python tests load, so it is built first.
STAND_INS = "stand_ins"


@dataclasses.dataclass
class Outcome:
    """What one run found; ``python`` is what pytest left in python.json."""

    cpp: CppResult
    python: dict[str, object]
    code: int  # of pytest
    seconds: float

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.cpp.failed

    def failed(self) -> list[str]:
        """Names of pytest and GoogleTest."""
        return [*map(str, self.python.get("failed", [])), *self.cpp.failed]  # type: ignore[call-overload]


def run(
    chosen: Chosen | None,
    *,
    nightly: bool = False,
    workers: int = 3,
    seed: int,
    pytest_args: Sequence[str] = (),
    write_durations: bool = False,
) -> Outcome:
    """Runs the tests that ``chosen`` names, or all of the level, and says how it went."""
    began = time.monotonic()
    RESULTS.mkdir(parents=True, exist_ok=True)
    os.environ["Q7X2_RANDOM_SEED"] = str(seed)
    if nightly:
        os.environ.update(WHOLE)
    python = chosen is None or bool(chosen.python)
    cpp = chosen is None or bool(chosen.cpp)
    found = binaries() if cpp else []
    if chosen is not None:
        named = {filters.partition(":")[0] for filters in chosen.cpp}
        found = [binary for binary in found if binary.name in named]
    wanted = [STAND_INS] if STAND_INS in targets() else []
    builder = Builder([*wanted, *dict.fromkeys(b.target for b in found)], _jobs())
    with contextlib.ExitStack() as stack:
        stack.callback(builder.stop)
        filters = None if chosen is None else chosen.cpp
        cpp_run = CppRun(found, builder, filters, nightly, processes=1)
        stack.callback(cpp_run.stop)
        code = 0
        results: dict[str, object] = {}
        if python:
            code, results = _pytest(chosen, nightly, workers, pytest_args, bool(wanted), builder)
        cpp_run.join()
    outcome = Outcome(cpp_run.result, results, code, time.monotonic() - began)
    if write_durations:
        durations.record("cpp", cpp_run.seconds)
        durations.record("python", results.get("durations", {}))  # type: ignore[arg-type]
        durations.publish(durations.PAGE)
    _tell(outcome, seed)
    return outcome


def _jobs() -> int:
    """Compilers at a time: `dev` says how many the memory allows."""
    return int(os.environ.get("Q7X2_JOBS", os.cpu_count() or 1))


def _pytest(
    chosen: Chosen | None,
    nightly: bool,
    workers: int,
    extra: Sequence[str],
    has_stand_ins: bool,
    builder: Builder,
) -> tuple[int, dict[str, object]]:
    results = RESULTS / "python.json"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q"]
    if chosen is None or len({test.partition("::")[0] for test in chosen.python}) > 1:
        command += ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    command += ["--nightly"] if nightly else []
    command += chosen.python if chosen is not None else []
    environment = {**os.environ, "Q7X2_TEST_RESULTS": str(RESULTS)}
    if has_stand_ins:
        environment["Q7X2_TEST_BUILDING"] = str(builder.mark(STAND_INS))
    with tied.session([*command, *extra], cwd=ROOT, env=environment) as process:
        code = process.wait()
    found: dict[str, object] = json.loads(results.read_text()) if results.exists() else {}
    return code, found


def _tell(outcome: Outcome, seed: int) -> None:
    """Failures within 200 lines, and last of all a line of counts."""
    cpp = outcome.cpp
    both = bool(cpp.failed) and outcome.code != 0
    lines_each = max(8, (60 if both else 120) // max(1, len(cpp.failed)))
    shown = list(cpp.failed)[: 6 if both else 12]
    for test in shown:
        print(f"\n---- {test} failed")
        print("\n".join(cpp.failed[test].splitlines()[-lines_each:]))
    if len(cpp.failed) > len(shown):
        print(f"\n... and {len(cpp.failed) - len(shown)} more, see {RESULTS / 'last.json'}")
    texts = RESULTS / "python-failures.txt"  # none if pytest itself was ended
    if both and texts.exists():  # pytest's are far above by now
        print("\n".join(texts.read_text().splitlines()[:120]))
    if not outcome.ok:
        print(f"\nAgain, with the same seed: ./dev test --again (seed {seed})")
    passed = len(cpp.passed) + int(str(outcome.python.get("passed", 0)))
    failed = len(outcome.failed())
    skipped = len(cpp.skipped) + int(str(outcome.python.get("skipped", 0)))
    took = f"all in {outcome.seconds:.0f} s"
    print(f"GoogleTest: {len(cpp.passed)} passed, {len(cpp.failed)} failed; {took}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    last: dict[str, object] = {
        "seed": seed,
        "python": outcome.python.get("failed", []),
        "cpp": list(cpp.failed),
    }
    (RESULTS / "last.json").write_text(json.dumps(last, indent=1) + "\n")
