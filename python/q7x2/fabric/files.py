"""Fabrics as JSON: read from files and from the catalogue."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class FabricError(RuntimeError):
    """A Fabric cannot be measured, read or drawn; the text says why."""


def load(text: str) -> dict[str, Any]:
    """Read a Fabric from JSON; see docs/fabric.md.

    Args:
        text: The JSON, as ``q7x2 fabric probe --out FILE`` writes it.

    Returns:
        The Fabric as a dict. It is checked, and every field is there.

    Raises:
        FabricError: The text is no Fabric. The message names the place that is wrong.
    """
    from q7x2._core.extension import load as load_extension

    try:
        fabric: dict[str, Any] = json.loads(load_extension().canonical_fabric(text))
    except ValueError as error:
        raise FabricError(str(error)) from None
    return fabric


def read(path: Path | str) -> dict[str, Any]:
    """Read a Fabric from a file; see :func:`load`.

    Args:
        path: A file with JSON.

    Returns:
        The Fabric as a dict.

    Raises:
        FabricError: The file cannot be read, or has no Fabric. The message names the file and what
            is wrong.
    """
    try:
        text = Path(path).read_text()
        if not text.strip():
            raise FabricError(
                "expected JSON, as `q7x2 fabric probe --out FILE` writes it, got nothing"
            )
        return load(text)
    except OSError as error:
        raise FabricError(f"cannot read the fabric in {path}: {error.strerror}") from None
    except (UnicodeDecodeError, FabricError) as error:
        raise FabricError(f"cannot read the fabric in {path}: {error}") from None


def catalogue() -> Path:
    """The directory of the Fabrics that were measured."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "q7x2"


def newest() -> Path:
    files = sorted(catalogue().glob("fabric-*.json"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise FabricError(
            f"the catalogue {catalogue()} is empty; name a file, or measure: q7x2 fabric probe"
        )
    return files[-1]
