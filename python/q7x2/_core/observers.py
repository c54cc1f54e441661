"""Who listens to a training. A module that does adds its functions when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

step_ended: list[Callable[[float | None], None]] = []
"""Called by ``q7x2.log_step`` with the loss."""

residuals_measured: list[Callable[[list[tuple[Any, ...]]], None]] = []
"""Called with rows of the ledger's table ``residual`` after a step that a hook has measured."""

hook_facts: list[Callable[[], list[dict[str, Any]]]] = []
"""Called by ``q7x2.stats`` for its ``hooks``."""
