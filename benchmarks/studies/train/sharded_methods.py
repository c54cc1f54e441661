"""How FSDP2's shards travel, in what is compared: a line each."""

from __future__ import annotations

from dataclasses import dataclass

import q7x2

NOTHING_SENT = "fake"  # torch's backend whose collectives return at once, with wrong results


@dataclass(frozen=True)
class ShardedMethod:
    """Attributes:
    options: None: FSDP2 as it is.
    """

    label: str
    backend: str
    options: q7x2.Sharded | None = None


_INT8_INT4 = q7x2.Sharded(weights="int8", gradients="int4:g=128")
_ROTATED = q7x2.Sharded(weights="int8", gradients="hadamard+int4:g=128")
_INT8_INT8 = q7x2.Sharded(weights="int8", gradients="int8")

FSDP_GLOO = "FSDP2 bf16, Gloo"
FSDP_Q7X2 = "FSDP2 bf16, q7x2"
COMPRESSED = "int8 differences, int4"
SHARDED_METHODS = (
    ShardedMethod(FSDP_GLOO, "gloo"),
    ShardedMethod(FSDP_Q7X2, "q7x2"),
    ShardedMethod("FSDP2 bf16, nothing sent", NOTHING_SENT),
    ShardedMethod("int8 differences, int8", "q7x2", _INT8_INT8),
    ShardedMethod(COMPRESSED, "q7x2", _INT8_INT4),
    ShardedMethod("int8 differences, hadamard+int4", "q7x2", _ROTATED),
    ShardedMethod("int8 differences, int4, Gloo", "gloo", _INT8_INT4),
)
SHARDED_BY_LABEL = {method.label: method for method in SHARDED_METHODS}
