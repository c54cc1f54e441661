"""What the tests of benchmarks and studies share."""

from __future__ import annotations

import pytest

from benchmarks import openmpi


@pytest.fixture(autouse=True)
def _no_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each study looks for them in all folders of the environment, for the facts of its machine."""
    monkeypatch.setattr(openmpi, "installations", list)
