"""How often ranks talk, in what is compared: a line each."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import q7x2

from benchmarks.studies.train.cadence_peers import Hivemind, MakePeer, PostLocal, TorchftDiLoCo
from benchmarks.studies.train.methods import BASELINE


@dataclass(frozen=True)
class CadenceMethod:
    """Attributes:
    options: Of ``q7x2.DiLoCo``, beside the recipe's interval; None: it is not used.
    peer: What trains instead; None as well: DDP at every step.
    needs: A package that is not always there.
    """

    label: str
    backend: str
    options: dict[str, Any] | None = None
    peer: MakePeer | None = None
    needs: str = "torch"

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.needs) is not None


_AVERAGE = q7x2.OuterSGD(lr=1, momentum=0)

DILOCO = "DiLoCo"
STREAMING = "Streaming DiLoCo, int4"
SPARSE = "SparseLoCo, top 2.5 %"
CADENCE_METHODS = (
    CadenceMethod(BASELINE, "gloo"),
    CadenceMethod("PyTorch post-local SGD, Gloo", "gloo", peer=PostLocal),
    CadenceMethod("torchft DiLoCo, Gloo", "gloo", peer=TorchftDiLoCo, needs="torchft"),
    CadenceMethod("hivemind averager", "gloo", peer=Hivemind, needs="hivemind"),
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
