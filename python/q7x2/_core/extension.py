"""Loads the compiled module ``q7x2._C``, with torch and UCX in front of it."""

from __future__ import annotations

import functools
import re
from importlib.metadata import PackageNotFoundError, requires, version
from types import ModuleType


@functools.cache
def load() -> ModuleType:
    """Return ``q7x2._C``.

    Raises:
        ValueError: The file of ``Q7X2_CONFIG`` is wrong.
        ImportError: torch or UCX is missing or does not fit the module. If torch has another minor
            version than the one that the module was compiled for, the message has the commands
            that install or compile the right one.
    """
    # The module links to both by soname: each must be in the process before it.
    import torch

    # With `variables`, which a group needs: its process may have no file descriptor left by then.
    from q7x2._core import config_file, math_views, ucx

    config_file.apply()
    ucx.load()
    try:
        from q7x2 import _C
    except ImportError as error:
        # The module's own check speaks of torch; the linker speaks of a symbol before that.
        if "undefined symbol" not in str(error) and "built against torch" not in str(error):
            raise
        raise ImportError(_other_torch(torch.__version__, str(error))) from error
    math_views.pass_on()
    return _C


def _torch_of_the_build() -> str:
    """The minor version of torch that the installed package requires: ``"2.13"``."""
    try:
        requirements = requires("q7x2") or []
    except PackageNotFoundError:
        requirements = []
    for requirement in requirements:
        if match := re.match(r"torch\s*==\s*(\d+\.\d+)", requirement):
            return match[1]
    return "another version"


def _other_torch(running: str, reason: str) -> str:
    minor = ".".join(running.split(".")[:2])
    public = version("q7x2").partition("+")[0]
    return (
        f"q7x2 {public} was compiled for torch {_torch_of_the_build()}, but this is torch "
        f"{running}. Install the wheel for torch {minor} from where you got this one:\n"
        f"  pip install --force-reinstall --no-deps --find-links WHEELS "
        f"'q7x2=={public}+torch{minor}'\n"
        f"or compile it in a checkout of q7x2:\n"
        f"  pip install --no-build-isolation --force-reinstall --no-deps .\n"
        f"({reason})"
    )
