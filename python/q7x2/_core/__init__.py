"""What all packages stand on: values, messages and groups of torch."""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "hook_state": ("HookStateError",),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2._core.hook_state import HookStateError as HookStateError
