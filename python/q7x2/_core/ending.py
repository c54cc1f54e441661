"""``Ending``: how a training by several ranks ends."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Ending:
    """A context manager: :meth:`finish` at its end, unless an exception ends it."""

    def finish(self) -> None:
        """End the training on all ranks; a collective call."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
