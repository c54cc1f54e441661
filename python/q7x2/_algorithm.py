"""``algorithm``: a choice of one's own, for the collectives of one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def algorithm(names: str) -> Iterator[None]:
    """Force the algorithm of the collectives that this thread calls in the ``with`` block.

    >>> with q7x2.algorithm("ring"):
    ...     dist.all_reduce(tensor)

    All ranks must force the same for the same call. It overrules ``Q7X2_ALGO`` and
    ``Options.algorithms``. Where none of the named algorithms can do what is asked (a ring has no
    broadcast; a sum of bfloat16 takes one that rounds once), the planner chooses freely.

    Args:
        names: One or several with commas, with or without their parameter: ``"ring"``,
            ``"sra,aggregator:2"``.

    Raises:
        ValueError: An algorithm of that name does not exist. The message lists those that do.
    """
    from q7x2._extension import load

    module = load()
    before = module.exchange_algorithms(names)
    try:
        yield
    finally:
        module.exchange_algorithms(before)
