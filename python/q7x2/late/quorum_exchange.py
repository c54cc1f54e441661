"""One step after the other is closed by the ranks that are there; csrc/late/quorum.h says how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from q7x2._core.extension import load
from q7x2.late.quorum_mail import Mail
from q7x2.late.quorum_messages import Closed, Contribution, Timing

_MOST_SENDS = 64


class Exchange:
    """The steps of one rank. All ranks make it together.

    Args:
        lengths: The least and the greatest number of bytes of a contribution.
        is_enough: Whether the contributions of a mask suffice to close a step. It must not hold on
            to the Exchange.
        state: Makes the state that a rank gets which is behind, a vector of uint8. The same.
    """

    def __init__(
        self,
        group: ProcessGroup,
        lengths: tuple[int, int],
        is_enough: Callable[[int], bool],
        state: Callable[[], Tensor],
        timing: Timing,
    ) -> None:
        self._mail = Mail(group, load().Quorum.WIDTH, most_sends=_MOST_SENDS)
        self._quorum = load().Quorum(self._mail.messages, lengths, is_enough, state)
        self.timing, self._has_left = timing, False

    def resume(self, step: int) -> None:
        """Begin with this step, equal on all ranks; RuntimeError after the first message."""
        self._quorum.resume(step)

    @property
    def step(self) -> int:
        """The current step."""
        return int(self._quorum.step)

    def close(self, mine: Contribution) -> Closed:
        """Take part in the current step until it is closed.

        Raises:
            TimeoutError: Too few ranks took part within the timeout.
            torch.distributed.DistBackendError: A rank died, or another failure of the group.
        """
        return _closed(self._timed().close(mine.data, mine.weight))

    def follow(self, patience: float) -> Closed | None:
        """Help to close the current step without a contribution; raises the same as :meth:`close`.

        Returns:
            None if there are not enough contributions after ``patience`` seconds: the others may
            need this rank's.
        """
        closed = self._timed().follow(patience)
        return None if closed is None else _closed(closed)

    def serve(self) -> None:
        """Give this rank's state to ranks that are behind, if it is this rank's turn.

        To be called after what a step has brought is applied.
        """
        self._quorum.serve()

    def finish(self) -> None:
        """Wait until all ranks have called it, and help those that are behind.

        Raises the same as :meth:`close`.
        """
        if self._has_left:
            return
        self._timed().finish()
        self._mail.leave()
        self._has_left = True

    def _timed(self) -> Any:
        timing = self.timing
        self._quorum.set_timing(timing.grace, timing.takeover, timing.timeout)
        return self._quorum


def _closed(ended: tuple[int, dict[int, tuple[Tensor, float]], Tensor | None, int]) -> Closed:
    mask, contributions, state, step = ended
    return Closed(mask, {r: Contribution(*each) for r, each in contributions.items()}, state, step)
