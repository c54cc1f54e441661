"""How processes end is what these tests are about."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _whole_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs end as any interpreter does; see ``zygote.py``.

    It costs most of a second of a core. In the quick level rank 0 does it, and the others, which
    run the same program, have left their groups when they end.
    """
    whole = "all" if request.config.getoption("--nightly") else "0"
    monkeypatch.setenv("Q7X2_TEST_WHOLE_END", whole)
