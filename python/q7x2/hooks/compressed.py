"""``Compressed``: any compressor of the C++ table, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from q7x2._core.option_checks import check_flags, compressor_kind
from q7x2._core.renamed import renamed
from q7x2.hooks.base import FullPrecision, Job, check_patterns


@renamed(compressor="name")
@dataclass(frozen=True)
class Compressed(FullPrecision):
    """Send gradients through any compressor of q7x2, by the name that it has in C++.

    >>> q7x2.attach(ddp, q7x2.hooks.Compressed("cyclic_top_k", {"ratio": 0.01}))

    Args:
        name: The compressor's name. :meth:`describe` lists all.
        options: The compressor's options, by name. Options that are left out have their defaults.
        compress_vectors: Whether biases, norms and other parameters of one dimension are
            compressed. FSDP2's shards always are.
        use_error_feedback: Add what was lost to the next gradient.

    Raises:
        ValueError: The compressor or an option does not exist, or a value does not fit.
    """

    name: str
    options: Mapping[str, Any] | None = None
    compress_vectors: bool = field(default=False, kw_only=True)
    use_error_feedback: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(
            compress_vectors=self.compress_vectors, use_error_feedback=self.use_error_feedback
        )
        fields = {each.name: each for each in compressor_kind(self.name).fields}
        given = {} if self.options is None else self.options
        for option, value in given.items():
            if option not in fields:
                raise ValueError(
                    f"{self.name} has no option {option!r}: expected one of {', '.join(fields)}"
                )
            fields[option].check(value)
        whole = {option: given.get(option, each.default) for option, each in fields.items()}
        object.__setattr__(self, "options", whole)

    @staticmethod
    def describe() -> str:
        """Return what compressors there are and what can be asked of them, as text."""
        from q7x2._core.extension import load

        lines = []
        for kind in load().compressor_kinds():
            lines.append(f"{kind.name}: {kind.doc}")
            lines += [f"    {each.name}={each.default!r}: {each.doc}" for each in kind.fields]
        return "\n".join(lines)

    def lanes(self, on_q7x2: bool) -> int:
        lanes: int = compressor_kind(self.name).lanes
        return lanes

    def factory(self, job: Job) -> Any:
        check_patterns(self.full_precision, job.parameters, "full_precision")
        assert self.options is not None  # filled when the hook was made
        options = dict(self.options)
        if "over_stock" in options:
            options["over_stock"] = not job.on_q7x2
        keeps_vectors = not job.are_shards and not self.compress_vectors
        whole = [
            self._is_whole(job, name, parameter) or (keeps_vectors and parameter.dim() < 2)
            for name, parameter in job.parameters
        ]
        return self._compressing_hook(
            job,
            self.name,
            options,
            whole=whole,
            use_error_feedback=self.use_error_feedback,
        )
