"""How often ranks talk, in what is compared: a line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import q7x2

from benchmarks.train.methods import BASELINE


@dataclass(frozen=True)
class CadenceMethod:
    """Attributes:
    options: Of ``q7x2.DiLoCo``, beside the recipe's interval; None: DDP at every step.
    """

    label: str
    backend: str
    options: dict[str, Any] | None = None


_AVERAGE = q7x2.OuterSGD(lr=1, momentum=0)

DILOCO = "DiLoCo"
STREAMING = "Streaming DiLoCo, int4"
SPARSE = "SparseLoCo, top 2.5 %"
CADENCE_METHODS = (
    CadenceMethod(BASELINE, "gloo"),
    CadenceMethod("local SGD", "q7x2", {"outer": _AVERAGE}),
    CadenceMethod(DILOCO, "q7x2", {}),
    CadenceMethod(STREAMING, "q7x2", {"fragments": 4, "overlap": 7, "compressor": "int4"}),
    CadenceMethod(
        SPARSE,
        "q7x2",
        {
            "outer": _AVERAGE,
            "compressor": "topk:0.025:reselect+int2:minmax:g=64",
            "residual_decay": 0.95,
        },
    ),
)
CADENCE_BY_LABEL = {method.label: method for method in CADENCE_METHODS}
