"""Loads the compiled module ``q7x2._C``, with torch and UCX in front of it."""

from __future__ import annotations

import functools
from types import ModuleType


@functools.cache
def load() -> ModuleType:
    """Return ``q7x2._C``. Raises ImportError where torch or UCX does not fit it."""
    # The module links to both by soname: each must be in the process before it.
    import torch

    from q7x2 import _ucx

    _ucx.load()
    try:
        from q7x2 import _C
    except ImportError as error:
        if "undefined symbol" not in str(error):
            raise
        raise ImportError(
            f"q7x2 was compiled for another version of torch than {torch.__version__}; build it "
            f"again with this one (pip install --no-build-isolation --force-reinstall --no-deps "
            f"q7x2): {error}"
        ) from error
    return _C
