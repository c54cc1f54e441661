"""A chunk of a bucket: its reduce-scatter, the step on this rank's shard, its all-gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2.overlap.layout import Member, Run, segments_of
from q7x2.overlap.optimizer import (
    State,
    copy_over,
    each_state,
    follow,
    merged_values,
)
from q7x2.overlap.views import KeptViews, copy_all, views_of

Named = tuple[str, nn.Parameter]


class Chunk:
    """See overlap/layout.py for the layout of its messages.

    Args:
        parameters: Those of the bucket, by name.
        members: The same, as they lie in the bucket.
        runs: By rank: the elements of the bucket that it owns.
        optimizer: The user's, whose state of these parameters is taken over.
        elementwise: The keys of its state that have one element per element of a parameter.
        groups: For reduce-scatters, and for all-gathers.
    """

    def __init__(
        self,
        parameters: Sequence[Named],
        members: Sequence[Member],
        runs: Sequence[Sequence[Run]],
        optimizer: torch.optim.Optimizer,
        elementwise: frozenset[str],
        groups: tuple[ProcessGroup, ProcessGroup],
    ) -> None:
        self._elementwise = elementwise
        self._scatter_group, self._gather_group = groups
        ranks, rank = groups[0].size(), groups[0].rank()
        by_rank = [segments_of(each, members) for each in runs]
        lengths = [sum(segment.length for segment in each) for each in by_rank]
        self._block = max(lengths)
        self._mine = by_rank[rank]
        self._segments = [
            (owner * self._block + segment.in_block, segment)
            for owner, segments in enumerate(by_rank)
            for segment in segments
        ]
        self.parameters = {
            segment.member: parameters[segment.member] for _, segment in self._segments
        }
        first = parameters[0][1]
        self._message = torch.zeros(ranks * self._block, dtype=first.dtype, device=first.device)
        self._values = self._message.new_zeros(self._block)
        self._gradient = self._message.new_zeros(self._block)
        self._length = lengths[rank]
        self.length_of_all = sum(lengths)
        self._copies = _merged((s.in_bucket, at, s.length) for at, s in self._segments)
        self._scaled: tuple[Tensor, list[tuple[Tensor, Tensor]]] | None = None
        self._work: Any = None
        self._pieces = self._make_pieces()
        self._gradients = views_of(
            [(self._gradient, b, p.numel()) for b, p in self._pieces.values()]
        )
        self._set_views()
        self._optimizer = copy_over(optimizer, {g: piece for g, (_, piece) in self._pieces.items()})
        self.take_state(optimizer)

    def _make_pieces(self) -> dict[int, tuple[int, nn.Parameter]]:
        """By parameter group: where the piece begins in this rank's block, and the piece.

        All groups of the chunk have a piece, which may be empty, so all ranks have equal keys in
        their states.
        """
        pieces = {}
        for group in sorted({segment.group for _, segment in self._segments}):
            begin = sum(s.length for s in self._mine if s.group < group)
            length = sum(s.length for s in self._mine if s.group == group)
            piece = nn.Parameter(self._values[begin : begin + length])
            pieces[group] = (begin, piece)
        return pieces

    def _set_views(self) -> None:
        """What a step copies from parameters, and what lands in them."""
        by_member = {member: p for member, (_, p) in self.parameters.items()}
        self._own, self._whole = (
            KeptViews([(by_member[s.member], s.at, s.length) for s in segments])
            for segments in (self._mine, [segment for _, segment in self._segments])
        )
        self._stepped = views_of([(self._values, s.in_block, s.length) for s in self._mine])
        self._gathered = views_of([(self._message, at, s.length) for at, s in self._segments])

    # ---- gradients -------------------------------------------------------------------------------

    @property
    def gradient(self) -> Tensor:
        """This rank's shard of the mean gradient, flat; valid after :meth:`wait`."""
        return self._gradient[: self._length]

    def scatter(self, bucket: Tensor, scale: float) -> None:
        """Begin the reduce-scatter of a bucket's gradients, times ``scale``."""
        for gradients, message in self._copies_of(bucket):
            torch.mul(gradients, scale, out=message)
        self._work = dist.reduce_scatter_tensor(
            self._gradient, self._message, group=self._scatter_group, async_op=True
        )

    def _copies_of(self, bucket: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Parts of the bucket, and their places in the message."""
        if self._scaled is None or not self._scaled[0].is_set_to(bucket):
            parts = views_of([(bucket, begin, length) for begin, _, length in self._copies])
            places = views_of([(self._message, at, length) for _, at, length in self._copies])
            self._scaled = bucket, list(zip(parts, places, strict=True))
        return self._scaled[1]

    def when_scattered(self, call: Callable[[Any], None]) -> None:
        """Call ``call`` with the future of the reduce-scatter when it has ended."""
        self._work.get_future().add_done_callback(call)

    def wait(self) -> None:
        """Return when the shard of the mean gradient is there; raises if the collective failed."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    # ---- the step --------------------------------------------------------------------------------

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step on this rank's shard, with the options that ``optimizer`` has now.

        The new values are in the shard. The parameters change when the all-gather has landed.
        """
        # Not kept from the last step: the user may have changed the parameters.
        copy_all(self._stepped, self._own.get())
        for (_, piece), gradient in zip(self._pieces.values(), self._gradients, strict=True):
            piece.grad = gradient
        follow(self._optimizer, optimizer, list(self._pieces))
        self._optimizer.step()

    def start_gather(self) -> Any:
        """Begin the all-gather of the new values, and return its Work."""
        return dist.all_gather_into_tensor(
            self._message, self._values, group=self._gather_group, async_op=True
        )

    def land(self) -> None:
        """The all-gather has ended: change the parameters."""
        copy_all(self._whole.get(), self._gathered)

    # ---- state -----------------------------------------------------------------------------------

    def take_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over this rank's part of the whole state that ``optimizer`` has.

        Raises ValueError if the parameters of a group cannot share one state.
        """
        for group, (begin, piece) in self._pieces.items():
            members = sorted({s.member for _, s in self._segments if s.group == group})
            names = [self.parameters[m][0] for m in members]
            whole = [self.parameters[m][1] for m in members]
            states = each_state(optimizer, whole, names)
            self._optimizer.state.pop(piece, None)
            if states is not None:
                of_member = dict(zip(members, states, strict=True))
                self._optimizer.state[piece] = {
                    key: self._piece_of(key, group, begin, piece, of_member, names)
                    for key in states[0]
                }

    def _piece_of(
        self,
        key: str,
        group: int,
        begin: int,
        piece: Tensor,
        states: dict[int, State],
        names: Sequence[str],
    ) -> Any:
        if key not in self._elementwise:
            return merged_values(list(states.values()), key, names)
        sample = next(iter(states.values()))[key]
        value = torch.zeros(piece.shape, dtype=sample.dtype, device=piece.device)
        for segment in self._mine:
            if segment.group == group:
                whole = states[segment.member][key].reshape(-1)
                at = segment.in_block - begin
                value[at : at + segment.length] = whole[segment.at : segment.at + segment.length]
        return value

    def give_state(self, whole: Callable[[nn.Parameter], State]) -> None:
        """Put the state of all ranks' shards into the whole states; a collective call."""
        for group, (begin, piece) in self._pieces.items():
            for key, value in self._optimizer.state.get(piece, {}).items():
                members = {s.member for _, s in self._segments if s.group == group}
                if key not in self._elementwise:
                    for member in members:
                        kept = value.clone() if isinstance(value, Tensor) else value
                        whole(self.parameters[member][1])[key] = kept
                    continue
                mine = value.new_zeros(self._block)
                mine[begin : begin + piece.numel()] = value
                everybody = mine.new_zeros(self._message.shape)
                dist.all_gather_into_tensor(everybody, mine, group=self._scatter_group)
                for at, segment in self._segments:
                    if segment.group != group:
                        continue
                    p = self.parameters[segment.member][1]
                    full = whole(p)
                    if key not in full:
                        full[key] = torch.zeros_like(p, dtype=value.dtype)
                    full[key].view(-1)[segment.at : segment.at + segment.length] = everybody[
                        at : at + segment.length
                    ]


def _merged(copies: Any) -> list[tuple[int, int, int]]:
    """Copies (from, to, length), in which neighbours are one copy."""
    merged: list[tuple[int, int, int]] = []
    for begin, at, length in sorted(copies):
        if merged:
            last_begin, last_at, last = merged[-1]
            if last_begin + last == begin and last_at + last == at:
                merged[-1] = (last_begin, last_at, last + length)
                continue
        merged.append((begin, at, length))
    return merged
