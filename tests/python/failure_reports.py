"""Explains failed tests at the end of the output, and writes the results of a run to files.

The last lines of the output have, for each failed test, its ranks, their stacks, flight records and
logs, the machine's load, and the command that repeats the test with the same seed. In the folder
``Q7X2_TEST_RESULTS`` (``build/test``) are

- ``python.json``: what failed, the seed, and the seconds of each file
- ``python-failures.txt``: the explanations, as they were printed
- ``failures/TEST.txt``: all that is known of one test
"""

from __future__ import annotations

import json
import pathlib
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import explain
import failure_facts
import machine_load
import pytest
import seeds
from explain import Explanation
from failure_facts import file_of, folder
from machine_load import CpuTimes

LINES = 180  # for all explanations together
MOST = 30  # so many tests are explained; the others are in the files
GRACE_S = 60.0  # a test that runs out of time has so long to clean up

_PROPERTY = "explanation"


def pytest_configure(config: pytest.Config) -> None:
    seeds.seed()
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        failure_facts.clear()
        config.pluginmanager.register(Run(config))


def pytest_report_header() -> str:
    return f"seed: {seeds.VARIABLE}={seeds.seed()}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    failure_facts.begin(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        crash = failure_facts.crash_line(report)
        explanation = failure_facts.of_test(item, report.when, report.longreprtext, crash)
        report.user_properties.append((_PROPERTY, explanation.to_json()))
    return report


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """A test that runs out of time fails. Its process ends only if the test does not stop then.

    Without the process its worker's other tests would begin anew, with pools of their own.
    """
    if settings.method != "thread":
        return None
    is_over = threading.Event()
    crash = f"not ended within {settings.timeout:g} s"

    def fail(*_: object) -> None:
        if not is_over.is_set():
            pytest.fail(crash)

    def watch() -> None:
        if is_over.wait(settings.timeout):
            return
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        if not is_over.wait(GRACE_S):
            _end_process(item, settings, f"{crash}, nor stopped {GRACE_S:g} s later")

    def cancel() -> None:
        is_over.set()
        thread.join()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    signal.signal(signal.SIGALRM, fail)
    thread = threading.Thread(target=watch, name=f"timeout of {item.nodeid}")
    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    thread.start()
    return True


def _end_process(item: pytest.Item, settings: Any, crash: str) -> None:
    """Writes down where the ranks are, and ends the process."""
    import pytest_timeout

    explanation = failure_facts.of_test(item, "timeout", _main_stack() + crash, crash)
    file_of(explanation.test, "json").write_text(json.dumps(explanation.to_json()))
    print("\n".join(explain.layout(explanation, LINES)), file=sys.__stderr__, flush=True)
    pytest_timeout.timeout_timer(item, settings)


def _main_stack() -> str:
    """Where the main thread is, without the frames of pytest."""
    main = sys._current_frames()[threading.main_thread().ident or 0]
    frames = traceback.extract_stack(main)
    return "".join(traceback.format_list([f for f in frames if "site-packages" not in f.filename]))


class Run:
    """What the process that prints the results knows of the whole run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._begun = CpuTimes.now()
        self._passed: set[str] = set()
        self._skipped: set[str] = set()
        self._seconds: Counter[str] = Counter()
        self._failures: dict[str, Explanation] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._add(report.nodeid, report, "collection")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path = pathlib.PurePath(report.nodeid.partition("::")[0])
        self._seconds["/".join(path.parts[-2:])] += report.duration
        if report.failed:
            self._add(report.nodeid, report, report.when or "")
        elif report.skipped:
            self._skipped.add(report.nodeid)
        elif report.when == "call":
            self._passed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Iterator[None]:
        """Prints after all that pytest prints itself."""
        yield
        lines = self._summary()
        if self._failures:
            (folder() / "python-failures.txt").write_text("\n".join(lines) + "\n")
            terminalreporter.section(f"why {len(self._failures)} tests failed")
        for line in lines:
            terminalreporter.write_line(line)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        results = {
            "seed": seeds.seed(),
            "failed": list(self._failures),
            "failed_count": len(self._failures),
            "passed": len(self._passed - self._failures.keys()),
            "skipped": len(self._skipped - self._failures.keys()),
            "durations": {file: round(took, 3) for file, took in sorted(self._seconds.items())},
            "load": machine_load.describe(self._begun),
        }
        folder().mkdir(parents=True, exist_ok=True)
        (folder() / "python.json").write_text(json.dumps(results, indent=1) + "\n")

    def _add(self, nodeid: str, report: Any, when: str) -> None:
        if when == "collection" and nodeid in self._failures:
            return  # each worker collects all files
        properties = dict(getattr(report, "user_properties", ()))
        if _PROPERTY in properties:
            explanation = Explanation.from_json(properties[_PROPERTY])
        elif (left := file_of(nodeid, "json")).exists():  # by a worker that has ended
            explanation = Explanation.from_json(json.loads(left.read_text()))
        else:
            explanation = failure_facts.without_test(
                self._config, nodeid, when, report.longreprtext
            )
        known = self._failures.setdefault(nodeid, explanation)
        if known is not explanation:  # the test failed, and then its teardown
            for section in explanation.sections:
                section.name = f"{when} {section.name}"
            known.sections += explanation.sections[:1]

    def _summary(self) -> list[str]:
        lines = []
        shown = list(self._failures.values())[:MOST]
        spare = len(self._failures) - len(shown)
        for explanation in shown:
            lines += explain.layout(explanation, LINES // len(shown))
        if spare:
            lines.append(f"and {spare} more tests, see {folder() / 'failures'}")
        lines.append(f"seed: {seeds.VARIABLE}={seeds.seed()}; {machine_load.describe(self._begun)}")
        return lines
