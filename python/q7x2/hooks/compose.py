"""``Allreduce``, which compresses nothing, and ``Compose``, several hooks in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from q7x2.hooks.base import HookOptions, Job, check_patterns

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Allreduce:
    """The uncompressed all-reduce of DDP without a hook, or one that is rounded to 16 bits.

    Args:
        dtype: The type that is sent: ``torch.float16`` or ``torch.bfloat16``. None: the type of the
            gradients; the results then have the same bits as DDP without a hook.

    Raises:
        ValueError: ``dtype`` is another type.
    """

    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        import torch

        if self.dtype not in (None, torch.float16, torch.bfloat16):
            raise ValueError(f"dtype must be torch.float16 or torch.bfloat16, got {self.dtype}")

    def lanes(self, on_q7x2: bool) -> int:
        return 1

    def factory(self, job: Job) -> Any:
        from q7x2._core.extension import load

        return load().dense_hook(self.dtype)

    def recipe(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Compose:
    """A hook for each parameter, chosen by the first pattern that matches the parameter's name.

    >>> q7x2.Compose({"embedding.*": q7x2.TopK(0.01), "*": q7x2.PowerSGD(rank=4)})

    Args:
        hooks: The hook for each pattern. Every parameter must match one.

    Raises:
        ValueError: ``hooks`` is not a dict of hooks by pattern; from :func:`attach`, a parameter
            matches no pattern, or a pattern no parameter.
    """

    hooks: Mapping[str, HookOptions]

    def __post_init__(self) -> None:
        if not isinstance(self.hooks, Mapping) or not self.hooks:
            raise ValueError(
                f"hooks must be a dict of hooks by pattern, such as {{'*': q7x2.Quantize()}}, got "
                f"{self.hooks!r}"
            )
        for pattern, hook in self.hooks.items():
            if not isinstance(pattern, str) or not hasattr(hook, "factory"):
                raise ValueError(
                    f"hooks must be a dict of hooks by pattern, got {hook!r} for {pattern!r}"
                )

    def lanes(self, on_q7x2: bool) -> int:
        return max(hook.lanes(on_q7x2) for hook in self.hooks.values())

    def _owner_of(self, name: str) -> int:
        """The position in ``hooks`` of the hook that reduces the parameter ``name``."""
        for i, pattern in enumerate(self.hooks):
            if fnmatchcase(name, pattern):
                return i
        raise ValueError(
            f"no pattern matches parameter {name!r}: expected one that does, '*' for all others; "
            f"got {', '.join(map(repr, self.hooks))}"
        )

    def factory(self, job: Job) -> Any:
        from q7x2._core.extension import load

        check_patterns(list(self.hooks), job.parameters, "Compose")
        owners = {name: self._owner_of(name) for name, _ in job.parameters}

        def owned_by(hook: int) -> Callable[[str], bool]:
            return lambda name: owners[name] == hook

        factories = [
            hook.factory(replace(job, owns=owned_by(i)))
            for i, hook in enumerate(self.hooks.values())
        ]
        return load().composed_hook(factories, list(owners.values()))

    def recipe(self) -> dict[str, Any]:
        return {
            pattern: {"hook": type(hook).__name__, **hook.recipe()}
            for pattern, hook in self.hooks.items()
        }
