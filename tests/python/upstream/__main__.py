"""Runs PyTorch's own distributed tests against a backend and counts what passes.

    python tests/python/upstream --backend gloo --record   # the baseline: what Gloo passes here
    python tests/python/upstream --of gloo                 # those tests, aimed at q7x2
    python tests/python/upstream --quick                   # two dozen of them

World size 3 is what PyTorch's CI takes for Gloo; what is skipped there for too few ranks runs at 4
or 8. Each result is written as soon as its test ends, so that a run that was stopped goes on where
it was (``--again`` starts afresh).
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from upstream_aim import NOT_FOR_PLUGINS, STAND_IN  # noqa: E402

WORLD_SIZES = (3, 4, 8)

# One or two tests of each kind, with one world size: each takes processes of its own.
QUICK = """
3 test_Backend_enum_class
3 test_DistributedDataParallelCPU_grad_is_view
3 test_accumulate_gradients_no_sync_allreduce_with_then_hook
3 test_all_gather_coalesced_with_empty
3 test_all_gather_object_subgroup
3 test_all_reduce_coalesced_full_group_sum
3 test_all_reduce_complex_unsupported_ops
3 test_batch_isend_irecv_gloo_tags
3 test_destroy_full_group
3 test_gather_checks
3 test_get_future
3 test_monitored_barrier_gloo
3 test_monitored_barrier_gloo_subgroup
3 test_reduce_full_group_min
3 test_scatter_complex
3 test_scatter_object_list
3 test_send_recv_any_source_torch_profiler
3 test_send_recv_with_tag_autograd_profiler
3 test_sparse_all_reduce_sum
3 test_static_graph_api_cpu
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="upstream", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default="q7x2")
    parser.add_argument(
        "--of", help="only tests that this backend passed, by its recorded baseline"
    )
    parser.add_argument("--quick", action="store_true", help="only a chosen few")
    parser.add_argument("-k", action="append", default=[], help="only names matching this glob")
    parser.add_argument("--world-size", type=int, choices=WORLD_SIZES, help="only at this size")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument("--record", action="store_true", help="write the baseline of the backend")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/upstream"), help="folder of results"
    )
    parser.add_argument("--timeout", type=int, default=120, help="seconds for a test")
    return parser.parse_args()


def baseline(backend: str) -> pathlib.Path:
    from importlib.metadata import version

    return HERE / f"{backend}-torch{version('torch').split('+')[0]}.txt"


def read_cases(text: str) -> set[tuple[int, str]]:
    """Lines of a world size and a test's name."""
    cases = set()
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            size, name = line.split()
            cases.add((int(size), name))
    return cases


def main() -> int:
    options = arguments()
    if options.of and not baseline(options.of).exists():
        name = baseline(options.of).name
        sys.exit(f"there is no {name}: record it with --backend {options.of} --record")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.world_size is None:
        return run_all_sizes(options)
    return run_size(options)


def results_path(options: argparse.Namespace, world_size: int) -> pathlib.Path:
    return pathlib.Path(options.out) / f"{options.backend}-world{world_size}.json"


def run_all_sizes(options: argparse.Namespace) -> int:
    """torch's module reads its world size when it is imported: each size is a process."""
    worst = 0
    sizes = {size for size, _ in read_cases(QUICK)} if options.quick else WORLD_SIZES
    for size in sorted(sizes):
        command = [
            sys.executable,
            str(HERE / "__main__.py"),
            *sys.argv[1:],
            "--world-size",
            str(size),
        ]
        worst = max(worst, subprocess.run(command, check=False).returncode)
    everything: dict[tuple[int, str], dict[str, Any]] = {}
    for size in WORLD_SIZES:
        path = results_path(options, size)
        if path.exists():
            for name, result in json.loads(path.read_text()).items():
                everything[size, name] = result
    if options.of or options.quick:
        text = QUICK if options.quick else baseline(options.of).read_text()
        wanted = read_cases(text)
        if options.backend != STAND_IN:
            wanted = {(s, n) for s, n in wanted if n not in NOT_FOR_PLUGINS}
        everything = {case: result for case, result in everything.items() if case in wanted}
    print(f"\n{options.backend}, all world sizes: ", end="")
    summarise(everything)
    if options.record:
        lines = sorted(f"{s} {n}" for (s, n), r in everything.items() if r["status"] == "passed")
        head = f"# PyTorch's tests that {options.backend} passes on the CPU: world size, name\n"
        baseline(options.backend).write_text(head + "\n".join(lines) + "\n")
    return worst


def skipped_for_size(options: argparse.Namespace, size: int) -> set[str] | None:
    """Names that the next smaller size skipped for its size; None at the smallest."""
    smaller = [s for s in WORLD_SIZES if s < size]
    if not smaller:
        return None
    path = results_path(options, smaller[-1])
    before = json.loads(path.read_text()) if path.exists() else {}
    return {
        name
        for name, result in before.items()
        if result["status"] == "skipped" and re.search(r"world ?size", result["why"])
    }


def select(options: argparse.Namespace, names: list[str]) -> list[str]:
    size = options.world_size
    if options.quick:
        quick = read_cases(QUICK)
        return [n for n in names if (size, n) in quick and matches(n, options.k)]
    if options.of:
        passed = read_cases(baseline(options.of).read_text())
        return [n for n in names if (size, n) in passed and matches(n, options.k)]
    larger = skipped_for_size(options, size)
    return [n for n in names if (larger is None or n in larger) and matches(n, options.k)]


def matches(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def run_size(options: argparse.Namespace) -> int:
    os.environ["BACKEND"] = options.backend
    os.environ["WORLD_SIZE"] = str(options.world_size)
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(options.timeout)
    os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.backend == STAND_IN:
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import upstream_suite

    case = upstream_suite.UpstreamTest
    names = select(options, list(unittest.TestLoader().getTestCaseNames(case)))
    if options.backend != STAND_IN:
        names = [n for n in names if n not in NOT_FOR_PLUGINS]
    path = results_path(options, options.world_size)
    results: dict[str, Any] = {}
    if path.exists():
        results = json.loads(path.read_text())
    if options.again:
        results = {n: r for n, r in results.items() if n not in names}
    for number, name in enumerate(names, 1):
        if name not in results:
            results[name] = run_one(case, name)
            path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        result = results[name]
        last = result["why"].strip().splitlines()[-1:]
        print(
            f"[{options.world_size}: {number}/{len(names)}] {name} {result['status']} "
            f"{result['seconds']:.1f} s",
            *last,
            flush=True,
        )
    print(f"{options.backend}, world size {options.world_size}: ", end="")
    return summarise({(options.world_size, n): results[n] for n in names})


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
    elif any(code != 0 for code in codes) and not test.exit_codes_are_free:
        # Upstream looks at rank 0's exit code only.
        why = f"the ranks exited with {codes}"
        record.update(status="failed", why=why, output=output[-3000:])
    else:
        record.update(status="passed")
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    return record


def summarise(results: dict[tuple[int, str], dict[str, Any]]) -> int:
    count = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for result in results.values():
        count[result["status"]] += 1
    print(
        f"{count['passed']} of {count['passed'] + count['failed']} passed, "
        f"{count['skipped']} skipped",
        flush=True,
    )
    for (size, name), result in results.items():
        if result["status"] == "failed":
            print(f"FAILED at {size}: {name}")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
