"""A job that servers join, for the tests of servers."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import server_process


@pytest.fixture
def job(tmp_path: pathlib.Path) -> Iterator[server_process.Job]:
    with server_process.job(tmp_path) as made:
        yield made
