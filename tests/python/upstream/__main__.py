"""Runs PyTorch's own distributed tests against a backend and counts what passes.

    python tests/python/upstream --backend gloo              # the baseline: what Gloo passes here
    python tests/python/upstream --backend q7x2 --of gloo    # those tests, aimed at q7x2

One JSON file a backend and world size records each test as soon as it ends, so that a run that
was stopped goes on where it was (``--again`` starts afresh). World size 3 is what PyTorch's CI
takes for Gloo; 4 and 8 open the tests that need as many.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
import unittest
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

# Tests that only decide by their world size whether to run: the rest runs at the smallest size.
WORLD_SIZES = (3, 4, 8)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="upstream", description=__doc__.split("\n")[0])
    parser.add_argument("--backend", default="q7x2")
    parser.add_argument("--of", help="only tests that this backend passed (its recorded baseline)")
    parser.add_argument("--world-size", type=int, choices=WORLD_SIZES, default=WORLD_SIZES[0])
    parser.add_argument("-k", action="append", default=[], help="only names matching this glob")
    parser.add_argument("--names", type=pathlib.Path, help="only the names in this file")
    parser.add_argument("--only-skipped-at", type=int, help="only what was skipped at this size")
    parser.add_argument("--out", type=pathlib.Path, help="where the JSON goes")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument("--timeout", type=int, default=120, help="seconds for a test")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    return parser.parse_args()


def baseline_path(backend: str, world_size: int) -> pathlib.Path:
    import torch

    version = torch.__version__.split("+")[0]
    return HERE / f"{backend}-torch{version}-world{world_size}.json"


def read(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> int:
    options = arguments()
    os.environ["BACKEND"] = options.backend
    os.environ["WORLD_SIZE"] = str(options.world_size)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(options.timeout)

    # The fork server takes its import path from the environment (Python 3.11's ignores sys.path).
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    if options.backend == "gloo":
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["upstream_suite"])
    import upstream_suite

    case = upstream_suite.UpstreamTest
    names = [n for n in unittest.TestLoader().getTestCaseNames(case) if wanted(n, options)]
    if options.of:
        passed = read(baseline_path(options.of, options.world_size)).get("tests", {})
        names = [n for n in names if passed.get(n, {}).get("status") == "passed"]
    if options.only_skipped_at:
        before = read(baseline_path(options.of or options.backend, options.only_skipped_at))
        skipped = {n for n, t in before.get("tests", {}).items() if t["status"] == "skipped"}
        names = [n for n in names if n in skipped]
    if options.list:
        print("\n".join(names))
        return 0

    out = options.out or baseline_path(options.backend, options.world_size)
    record = {} if options.again else read(out)
    record.update(backend=options.backend, world_size=options.world_size)
    results: dict[str, Any] = record.setdefault("tests", {})
    for number, name in enumerate(names, 1):
        if name not in results:
            results[name] = run_one(case, name)
            out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        result = results[name]
        line = f"[{number}/{len(names)}] {name} {result['status']} {result['seconds']:.1f} s"
        print(line, result["why"].strip().splitlines()[-1:] or "", flush=True)
    return summarise({n: results[n] for n in names})


def wanted(name: str, options: argparse.Namespace) -> bool:
    if options.names and name not in options.names.read_text().split():
        return False
    return not options.k or any(fnmatch.fnmatch(name, pattern) for pattern in options.k)


def run_one(case: type[unittest.TestCase], name: str) -> dict[str, Any]:
    """Runs one test; its ranks' output is kept where the test fails."""
    start = time.monotonic()
    with tempfile.NamedTemporaryFile("r", suffix=".log", errors="replace") as log:
        test: Any = case(name)
        test.log = log.name
        result = unittest.TestResult()
        test.run(result)
        output = log.read()
    codes = getattr(test, "exit_codes", [])
    record: dict[str, Any] = {"seconds": round(time.monotonic() - start, 1), "why": ""}
    if result.skipped:
        record.update(status="skipped", why=result.skipped[0][1])
    elif result.failures or result.errors:
        trace = (result.failures + result.errors)[0][1]
        record.update(status="failed", why=trace[-3000:], output=output[-3000:])
    else:
        record.update(status="passed")
        # Upstream looks at rank 0's exit code only.
        if any(code != 0 for code in codes) and not test.skip_return_code_checks:
            record["exit_codes"] = codes
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    return record


def summarise(results: dict[str, Any]) -> int:
    count = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for name, result in results.items():
        count[result["status"]] += 1
        if result["status"] == "failed":
            print(f"FAILED {name}")
        if any(c != 0 for c in result.get("exit_codes", [])):
            print(f"passed, but its ranks exited with {result['exit_codes']}: {name}")
    ran = count["passed"] + count["failed"]
    print(f"{count['passed']} of {ran} passed, {count['skipped']} skipped")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
