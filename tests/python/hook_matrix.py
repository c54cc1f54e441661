"""Which hooks train with which options of DDP, in the tests that all hooks must pass.

The quick level runs a part, in which each two of a test, a hook and a layout of buckets meet.
"""

from __future__ import annotations

from typing import Any

import pytest
from hook_training import HOOKS, SMALL_BUCKETS
from pairs import OTHERS, covering

# What DDP may do with its buckets.
LAYOUTS: dict[str, dict[str, Any]] = {
    "default": {},
    "many": SMALL_BUCKETS,
    "view": {**SMALL_BUCKETS, "gradient_as_bucket_view": True},
    "static": {**SMALL_BUCKETS, "static_graph": True},
    "unused": {**SMALL_BUCKETS, "find_unused_parameters": True},
}

# The hooks that remember something between steps.
STATEFUL = [name for name in HOOKS if name not in ("dense", "bf16", "blocks")]

# For each test its hooks and its layouts. The fewest come first: `covering` takes them first.
TESTS: dict[str, tuple[list[str], list[str]]] = {
    "delays": (list(HOOKS), ["many"]),
    "skipped step": (STATEFUL, ["many"]),
    "loss scale": (STATEFUL, ["many"]),
    "resumption": (STATEFUL, ["default", "many"]),
    "replicas": (list(HOOKS), ["default", "many", "view"]),
    "conservation": (["powersgd", "alternating", "batched", "int8", "topk"], list(LAYOUTS)),
}

_CASES = [
    (test, hook, layout)
    for test, (hooks, layouts) in TESTS.items()
    for hook in hooks
    for layout in layouts
]
_QUICK = set(covering(_CASES))


def every_hook(test: str) -> pytest.MarkDecorator:
    """Calls a test with ``hook`` and ``options`` of DDP, in the combinations of ``TESTS``."""
    return pytest.mark.parametrize(
        ("hook", "options"),
        [
            pytest.param(
                HOOKS[case[1]],
                LAYOUTS[case[2]],
                id=f"{case[1]}-{case[2]}",
                marks=[] if case in _QUICK else pytest.mark.nightly(OTHERS[2]),
            )
            for case in _CASES
            if case[0] == test
        ],
    )
