"""Runtime dependencies of the package being built (a scikit-build-core metadata provider).

torch's C++ classes change between minor versions, so a build runs with the minor version of torch
that it was compiled against, and its metadata says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    try:
        major, minor = version("torch").split(".")[:2]
        torch = f"torch=={major}.{minor}.*"
    except PackageNotFoundError:  # an sdist can be made without torch
        torch = settings["torch"]
    return {"dependencies": [torch, *settings["others"]]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """An sdist does not bind the dependencies of the wheels made from it."""
    return {"dependencies": True}
