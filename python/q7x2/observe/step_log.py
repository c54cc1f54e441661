"""``log_step``: the program says that a step is over."""

from __future__ import annotations

import math

from q7x2._core import observers


def log_step(loss: float | None = None) -> None:
    """Say that this rank has completed a training step.

    The ledger then has the step's exact end instead of an estimate, and ``q7x2 report`` shows the
    loss over steps, seconds, bytes and money. Call it on all ranks, or on none. It takes about a
    microsecond and communicates nothing. It has no effect without ``Q7X2_LEDGER`` and
    ``q7x2.observe.export_to_opentelemetry``.

    >>> for batch in loader:
    ...     loss = train(batch)
    ...     q7x2.log_step(loss.item() if step % 10 == 0 else None)

    Args:
        loss: The loss of the step, a finite number or NaN; None if it was not computed. Different
            ranks may give different losses; the report shows their mean.

    Raises:
        TypeError: ``loss`` is not a number. Convert a tensor with ``.item()``, which waits for the
            device.
        ValueError: ``loss`` is infinite.
    """
    if loss is not None:
        if isinstance(loss, bool) or not isinstance(loss, (int, float)):
            raise TypeError(
                f"expected a number as the loss, got {type(loss).__name__}; use loss.item()"
            )
        if math.isinf(loss):
            raise ValueError("expected a finite loss or NaN, got infinity")
    for end_step in observers.step_ended:
        end_step(loss)
