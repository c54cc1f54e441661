"""A file that remembers what was done, so that a long run goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load(path: Path) -> dict[str, Any]:
    """Empty if there is no such file yet."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def save(path: Path, state: dict[str, Any]) -> None:
    """Replaces the file at once: a reader finds the old state or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state, indent=1) + "\n")
    new.replace(path)
