"""``algorithm``: force the algorithm of the collectives of one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def algorithm(names: str) -> Iterator[None]:
    """Force the algorithm of the collectives that this thread calls in the ``with`` block.

    >>> with q7x2.collectives.algorithm("ring"):
    ...     dist.all_reduce(tensor)

    All ranks must force the same algorithm for the same call. It overrides ``Q7X2_ALGO`` and
    ``Options.algorithms``. If none of the named algorithms can do a call, the planner chooses among
    all. For example, a ring has no broadcast, and a sum of bfloat16 needs an algorithm that rounds
    once.

    Args:
        names: One name, or several with commas, with or without their parameters: ``"ring"``,
            ``"sra,aggregator:2"``.

    Raises:
        ValueError: An algorithm of that name does not exist. The message lists those that do.
    """
    from q7x2._core.extension import load

    module = load()
    before = module.exchange_algorithms(names)
    try:
        yield
    finally:
        module.exchange_algorithms(before)
