"""Compressed collectives that return new tensors, for ``torch.compile`` and autograd.

docs/compile.md says how to use them, and what is compressed on the way back.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "forms": ("all_gather", "all_reduce", "all_to_all", "reduce_scatter"),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.functional.forms import all_gather as all_gather
    from q7x2.functional.forms import all_reduce as all_reduce
    from q7x2.functional.forms import all_to_all as all_to_all
    from q7x2.functional.forms import reduce_scatter as reduce_scatter
