"""These tests are meant to leave something, or never to stop. Nobody waits long for that."""

import failure_reports
import leftovers


def pytest_runtest_setup() -> None:
    leftovers.PATIENCE = 0.5
    failure_reports.GRACE_S = 1.0
