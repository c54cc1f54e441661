"""``Sharded``: what the traffic of an FSDP2 model is sent with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from q7x2._core.option_checks import (
    check_codec,
    check_edges,
    check_flags,
    check_seed,
    check_strings,
    check_whole,
)
from q7x2._core.renamed import renamed
from q7x2.hooks.attached import HookStats
from q7x2.hooks.base import matches

if TYPE_CHECKING:
    from q7x2.hooks.base import HookOptions

NONE = "none"
BF16 = "bf16"


@renamed(replicas="replica_hook")
@dataclass(frozen=True, kw_only=True)
class Sharded:
    """Compress what an FSDP2 model sends: its reduce-scatters and its all-gathers.

    Args:
        gradients: The codec of the reduce-scatter, ``"int4:g=128"`` or ``"hadamard+int4:g=128"``.
            Each rank encodes what it sends, once; the rank that owns a shard adds in float32.
            ``"none"`` leaves the reduce-scatter to FSDP.
        weights: The codec of the differences between the weights and what all ranks hold of them.
            ``"bf16"`` sends the weights themselves, rounded. ``"none"`` leaves the all-gather to
            FSDP.
        use_error_feedback: Add what ``gradients`` loses to the next gradient. Each rank then keeps
            a float32 copy of all gradients.
        refresh_every: Steps after which the weights are sent whole instead of their differences.
            None: only if something other than training has changed them.
        start_iter: The first steps are sent uncompressed.
        full_precision: Patterns of names of parameters that are never compressed.
        compress_vectors: Whether biases, norms and other parameters of one dimension are
            compressed.
        edges: Between which ranks gradients are compressed, as
            ``q7x2.reduce_scatter_tensor`` takes it.
            Groups of other backends take ``"auto"`` only.
        random_seed: The seed of the codecs' random numbers.
        replica_hook: The hook that averages the shards of several replicas. It needs the argument
            ``replica_group`` of :func:`attach` as well.

    Raises:
        ValueError: A codec does not exist, or has messages of varying length; or another option is
            out of range.
    """

    gradients: str = field(default="int4:g=128", kw_only=False)
    weights: str = "int8"
    use_error_feedback: bool = True
    refresh_every: int | None = 1000
    start_iter: int = 0
    full_precision: Sequence[str] = ()
    compress_vectors: bool = False
    edges: str = "auto"
    random_seed: int = 0
    replica_hook: HookOptions | None = None

    def __post_init__(self) -> None:
        if self.gradients != NONE:
            check_fixed("gradients", self.gradients)
        if self.weights not in (NONE, BF16):
            check_fixed("weights", self.weights)
        check_flags(
            use_error_feedback=self.use_error_feedback, compress_vectors=self.compress_vectors
        )
        if self.refresh_every is not None:
            check_whole("refresh_every", self.refresh_every, 1)
        check_whole("start_iter", self.start_iter, 0)
        check_strings("full_precision", self.full_precision)
        check_edges("edges", self.edges)
        check_seed("random_seed", self.random_seed)
        if self.replica_hook is not None and not hasattr(self.replica_hook, "factory"):
            raise ValueError(
                "replica_hook must be a hook, such as q7x2.Quantize('int8'), "
                f"got {self.replica_hook!r}"
            )

    def compresses(self, name: str, dimensions: int) -> bool:
        """Whether the parameter ``name``, which has ``dimensions`` dimensions, is compressed."""
        if dimensions < 2 and not self.compress_vectors:
            return False
        return not matches(name, self.full_precision)

    @property
    def compresses_shards(self) -> bool:
        """Whether any message of FSDP2 is compressed."""
        return self.gradients != NONE or self.weights != NONE

    @property
    def sends_differences(self) -> bool:
        """Whether all-gathers send differences of weights instead of weights."""
        return self.weights not in (NONE, BF16)

    def recipe(self) -> dict[str, Any]:
        """What a checkpoint must have in common with these options."""
        free = {"start_iter", "refresh_every", "edges", "replica_hook"}
        names = {option.name for option in fields(self)} - free
        recipe = {name: getattr(self, name) for name in sorted(names)}
        recipe["full_precision"] = list(self.full_precision)
        if self.replica_hook is not None:
            name = type(self.replica_hook).__name__
            recipe["replicas"] = {"hook": name, **self.replica_hook.recipe()}
        return recipe


def check_fixed(option: str, name: Any) -> None:
    """Raise ValueError unless messages of this codec can be added up by who gets them."""
    from q7x2._core.extension import load

    check_codec(option, name)
    codec = load().Codec(name)
    if not (codec.has_messages and codec.fixed_size and codec.keeps_error):
        raise ValueError(
            f"{option}: expected a codec whose messages have one length and approximate what was "
            f"sent, such as int8 or hadamard+int4:g=128, got {name!r}"
        )


@dataclass(frozen=True)
class ShardedStats(HookStats):
    """What compressed FSDP2 has done on this rank since it was attached.

    Attributes:
        steps: The number of backwards whose gradients were reduced.
        skipped_steps: How many of these had Inf or NaN. They are counted if :func:`attach` was
            given a scaler.
        buckets: The number of gradients that FSDP2 has handed over, each of one module.
        gradient_bytes: The bytes of these gradients.
        message_bytes: The bytes that were sent for them.
        cpu_seconds: CPU seconds by phase.
        weight_bytes: The uncompressed bytes of the weights that this rank has given to all-gathers.
        weight_message_bytes: The bytes that it has sent for them.
        gathers: The number of all-gathers that sent weights or differences.
        repeats: The number of all-gathers of weights that had not changed.
        refreshes: The number of all-gathers that sent whole weights.
    """

    weight_bytes: int
    weight_message_bytes: int
    gathers: int
    repeats: int
    refreshes: int
