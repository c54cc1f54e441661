"""How processes end is what these tests are about."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _whole_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs end as any interpreter does; see ``zygote.py``."""
    monkeypatch.setenv("Q7X2_TEST_WHOLE_END", "1")
