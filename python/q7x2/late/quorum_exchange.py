"""One step after the other is closed by the ranks that are there; the others find it closed.

In each step every rank sends its contribution to all others. When enough are there, the ranks vote
which of them count (``quorum_vote``), and each adds those up by itself, in the order of the ranks.
So all ranks have the same bits, and no rank is needed by all others::

    rank 0   contribution ---- PROPOSE {0,1,2} -- ACCEPT -- decided: sum of 0, 1, 2
    rank 1   contribution ------------------------ ACCEPT -- decided: sum of 0, 1, 2
    rank 2   contribution ------------------------ ACCEPT -- decided: sum of 0, 1, 2
    rank 3   (stopped) ............................................ ASK: the step is closed

A rank that is far behind asks for the state of a rank that is not (WANT, STATE). It gets it right
after a step was closed, so both begin the next one together, or at once if a step lacks ranks.

A rank sends contributions only to ranks that it has heard of since the last step but one, and one
at a time. So what waits for a stopped rank is bounded. What was proposed with a contribution of a
rank that was stopped before all had it is passed on by the proposer (NEED), when it has been
missing for longer than contributions usually take.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from q7x2.late.quorum_mail import Letter, Mail
from q7x2.late.quorum_messages import Closed, Contribution, Header, Other, Timing
from q7x2.late.quorum_vote import Ballot, Kind, Value, Vote

_REMEMBERED = 4096  # decisions, for ranks that are behind
_USUAL = 16  # the last contributions, which say how long they usually take


@dataclass
class _Wait:
    """What a rank does when in a step, by ``time.monotonic()``."""

    begun: float = field(default_factory=time.monotonic)
    enough: float | None = None  # since when there are enough contributions
    lacking: float | None = None  # since when a proposal counts contributions that are not here
    needed: dict[int, float] = field(default_factory=dict)  # by rank: when it was asked for them
    takeovers: int = 0
    asked: float = field(default_factory=time.monotonic)
    behind: float | None = None  # since when the decision is known, and contributions are missing
    wanted: float = 0.0


class Exchange:
    """The steps of one rank. All ranks make it together.

    Args:
        lengths: The least and the greatest number of bytes of a contribution.
        is_enough: Whether the contributions of a mask suffice to close a step.
        state: Makes the state that a rank gets which is behind, a vector of uint8.
    """

    def __init__(
        self,
        mail: Mail,
        lengths: tuple[int, int],
        is_enough: Callable[[int], bool],
        state: Callable[[], Tensor],
        timing: Timing,
    ) -> None:
        self._mail, self._lengths, self._state = mail, lengths, state
        self._is_enough, self.timing = is_enough, timing
        self.step = 0
        self._vote = Vote(mail.rank, mail.world_size, leader=0)
        self._decided: dict[int, Value] = {}
        # By step and rank: those of this step, and early ones of the next.
        self._contributions: dict[tuple[int, int], Contribution] = {}
        self._early: list[Letter] = []  # of the vote of a later step
        self._own: dict[int, Contribution] = {}  # by step: this one and the last
        self._sent: dict[int, set[int]] = {}  # by step: to whom
        self._heard = dict.fromkeys(mail.peers, 0)  # the furthest step of each rank
        self._begun = time.monotonic()
        self._delays = deque([0.0], _USUAL)  # of contributions, since the begin of their step
        self._need: dict[int, int] = {}  # by rank: contributions of this step that it lacks
        self._wanting: set[int] = set()
        self._arrived: tuple[int, int, Tensor] | None = None
        self._done: set[int] = set()
        self._is_done = self._has_begun = self._has_left = False

    def resume(self, step: int) -> None:
        """Begin with this step, equal on all ranks; RuntimeError after the first message."""
        if self._has_begun:
            raise RuntimeError("load_state_dict() is to be called before the first step()")
        self.step, self._heard = step, dict.fromkeys(self._mail.peers, step)

    # ---- what a rank does ------------------------------------------------------------------------

    def close(self, mine: Contribution) -> Closed:
        """Take part in the current step until it is closed.

        Raises:
            TimeoutError: Too few ranks took part within the timeout.
            torch.distributed.DistBackendError: A rank died, or another failure of the group.
        """
        if self.step not in self._own:
            # After a step that timed out, others may hold what this rank sent in it.
            self._own[self.step], self._sent[self.step] = mine, set()
            self._contributions[self.step, self._mail.rank] = mine
        closed = self._take_part(math.inf)
        assert closed is not None
        return closed

    def follow(self, patience: float) -> Closed | None:
        """Help to close the current step without a contribution; raises the same as :meth:`close`.

        Returns:
            None if there are not enough contributions after ``patience`` seconds: the others may
            need this rank's.
        """
        return self._take_part(patience)

    def _take_part(self, patience: float) -> Closed | None:
        wait = _Wait()
        self._begun, self._has_begun = wait.begun, True
        early, self._early = self._early, []
        for letter in early:
            self._hear(letter)
        self._ask()
        while True:
            self._say(self._vote.accept(self._held))
            if (value := self._vote.decided) and not value.mask & ~self._held:
                return self._advance(value)
            if self._arrived is not None:
                return self._jump()
            self._offer()
            self._act(wait)
            if wait.enough is None and time.monotonic() - wait.begun > patience:
                return None
            self._receive(self.timing.takeover / 4)

    def serve(self) -> None:
        """Give this rank's state to ranks that are behind, if it is this rank's turn.

        To be called after what a step has brought is applied.
        """
        rank = self._mail.rank
        if rank == (min({*self._done, rank}) if self._is_done else self._vote.leader):
            self._give_state()
        self._wanting.clear()

    def finish(self) -> None:
        """Wait until all ranks have called it, and help those that are behind.

        Raises the same as :meth:`close`.
        """
        if self._has_left:
            return
        self._is_done = self._has_begun = True
        begun, said = time.monotonic(), 0.0
        while len(self._done) < len(self._mail.peers):
            now = time.monotonic()
            if now - begun > self.timing.timeout:
                missing = sorted(set(self._mail.peers) - self._done)
                raise TimeoutError(
                    f"finish() timed out after {self.timing.timeout:g} s, waiting for ranks "
                    f"{', '.join(map(str, missing))}"
                )
            if now - said > self.timing.takeover:
                said = now
                for peer in self._mail.peers:
                    self._post(peer, Other.DONE, self.step)
            self._receive(self.timing.takeover)
            self.serve()
        for peer in self._mail.peers:
            self._post(peer, Other.DONE, self.step)
        self._mail.leave()
        self._has_left = True

    # ---- time ------------------------------------------------------------------------------------

    def _act(self, wait: _Wait) -> None:
        """What is due by the clock."""
        now, timing, vote = time.monotonic(), self.timing, self._vote
        if now - wait.begun > timing.timeout:
            missing = [r for r in self._mail.peers if not self._held >> r & 1]
            raise TimeoutError(
                f"step {self.step} timed out after {timing.timeout:g} s, waiting for ranks "
                f"{', '.join(map(str, missing)) or 'that vote'}"
            )
        if now - wait.asked > timing.takeover:
            wait.asked = now
            self._ask()
        self._ask_for_contributions(wait, now)
        if vote.decided or max(self._heard.values()) > self.step:
            if wait.behind is None:
                wait.behind = now
            is_far = max(self._heard.values()) > self.step + 1
            if (is_far or now - wait.behind > timing.takeover) and now - wait.wanted > 1.0:
                wait.wanted = now
                for peer in self._mail.peers:
                    self._post(peer, Other.WANT, self.step)
            return
        turn = (self._mail.rank - vote.leader - 1) % self._mail.world_size
        if not self._is_enough(self._held):
            # The ranks that are behind may be those that this step needs.
            if self._wanting and now - wait.begun > timing.takeover * (1 + turn):
                self._give_state()
            return
        if wait.enough is None:
            wait.enough = now
        # A rank that has missed more than a step is not waited for.
        near = [peer for peer, step in self._heard.items() if step >= self.step - 1]
        is_whole = all(self._held >> peer & 1 for peer in near)
        if is_whole or now - wait.enough >= timing.grace:
            self._say(vote.lead(self._held))
        # Ranks take turns, so that one of them succeeds before the next one tries.
        patience = timing.grace + timing.takeover * (1 + turn) * (1 + wait.takeovers)
        if now - wait.enough > patience:
            wait.takeovers += 1
            wait.enough = now
            self._say(vote.take_over())

    def _ask(self) -> None:
        for peer in self._mail.peers:
            self._post(peer, Other.ASK, self.step)

    def _ask_for_contributions(self, wait: _Wait, now: float) -> None:
        """What a proposal counts and has not come from its own rank, from the proposer."""
        proposal, source = self._vote.proposal, self._vote.source
        missing = proposal[1].mask & ~self._held if proposal else 0
        if not missing or source == self._mail.rank:
            return
        wait.lacking = wait.lacking or now
        last = wait.needed.get(source, 0.0)
        patience = self.timing.takeover + statistics.median(self._delays)
        if now - wait.lacking > patience and now - last > patience:
            wait.needed[source] = now
            self._post(source, Other.NEED, self.step, mask=missing)

    # ---- messages --------------------------------------------------------------------------------

    @property
    def _held(self) -> int:
        return sum(1 << rank for step, rank in self._contributions if step == self.step)

    def _receive(self, seconds: float) -> None:
        letter = self._mail.receive(seconds)
        if letter is not None:
            self._hear(letter)

    def _hear(self, letter: Letter) -> None:
        head, sender = Header(*letter.header), letter.sender
        step, value = head.step, Value(head.mask, head.leader)
        self._heard[sender] = max(self._heard[sender], head.at)
        if head.kind == Other.CONTRIBUTION:
            self._take(head, letter)
        elif head.kind == Other.ASK:
            if step < self.step and step in self._decided:
                decided = self._decided[step]
                self._post(sender, Other.DECIDED, step, mask=decided.mask, leader=decided.leader)
            elif step == self.step:
                self._say(self._vote.repeat(sender))
        elif head.kind == Other.DECIDED and step == self.step:
            self._vote.decided = value
        elif head.kind == Other.NEED and step == self.step:
            self._need[sender] = head.mask
        elif head.kind == Other.WANT and step < self.step:
            self._wanting.add(sender)
        elif head.kind == Other.STATE and letter.payload is not None:
            if step > self.step and (self._arrived is None or step > self._arrived[0]):
                self._arrived = step, head.leader, letter.payload
        elif head.kind == Other.DONE:
            self._done.add(sender)
        elif head.kind < Other.CONTRIBUTION and step == self.step:
            message = Ballot(Kind(head.kind), head.ballot, value, accepted=head.accepted)
            self._say(self._vote.hear(sender, message, self._held))
        elif head.kind < Other.CONTRIBUTION and step == self.step + 1:
            self._early.append(letter)

    def _take(self, head: Header, letter: Letter) -> None:
        step = head.step
        data = torch.empty(0) if letter.payload is None else letter.payload
        least, most = self._lengths
        if not least <= data.numel() <= most:
            raise RuntimeError(
                f"rank {letter.sender} sent a contribution of {data.numel()} bytes, expected "
                f"{least} to {most}"
            )
        if step in (self.step, self.step + 1) and 0 <= head.origin < self._mail.world_size:
            real = torch.tensor(head.weight).view(torch.float64).item()
            self._contributions.setdefault((step, head.origin), Contribution(data, real))
            self._delays.append(time.monotonic() - self._begun if step == self.step else 0.0)

    def _offer(self) -> None:
        """Send contributions to whoever takes them now."""
        for step, mine in self._own.items():
            for peer in self._mail.peers:
                is_near = self._heard[peer] >= step - 1
                if is_near and peer not in self._sent[step] and not self._mail.is_loading(peer):
                    self._sent[step].add(peer)
                    self._give(peer, step, self._mail.rank, mine)
        for peer, mask in list(self._need.items()):
            for rank in range(self._mail.world_size):
                held = self._contributions.get((self.step, rank))
                if mask >> rank & 1 and held is not None and not self._mail.is_loading(peer):
                    self._need[peer] &= ~(1 << rank)
                    self._give(peer, self.step, rank, held)

    def _give_state(self) -> None:
        for peer in self._wanting:
            payload, leader = self._state(), self._vote.leader
            self._post(peer, Other.STATE, self.step, leader=leader, payload=payload)
            self._heard[peer] = max(self._heard[peer], self.step)
        self._wanting.clear()

    def _give(self, peer: int, step: int, origin: int, what: Contribution) -> None:
        weight = int(torch.tensor(what.weight, dtype=torch.float64).view(torch.int64))
        self._post(peer, Other.CONTRIBUTION, step, origin=origin, weight=weight, payload=what.data)

    def _say(self, ballots: list[Ballot]) -> None:
        for b in ballots:
            for peer in self._mail.peers if b.to is None else [b.to]:
                self._post(
                    peer,
                    b.kind,
                    self.step,
                    ballot=b.ballot,
                    accepted=b.accepted,
                    mask=b.value.mask,
                    leader=b.value.leader,
                )

    def _post(
        self, peer: int, kind: int, step: int, *, payload: Tensor | None = None, **numbers: int
    ) -> None:
        self._mail.send(peer, Header(int(kind), step, self.step, **numbers), payload)

    # ---- the next step ---------------------------------------------------------------------------

    def _advance(self, value: Value) -> Closed:
        counted = {
            rank: self._contributions[self.step, rank]
            for rank in range(self._mail.world_size)
            if value.mask >> rank & 1
        }
        self._decided[self.step] = value
        self._decided.pop(self.step - _REMEMBERED, None)
        self._begin(self.step + 1, value.leader)
        return Closed(value.mask, counted, None, self.step)

    def _jump(self) -> Closed:
        assert self._arrived is not None
        step, leader, state = self._arrived
        self._begin(step, leader)
        self._ask()  # so that all know that this rank is back
        return Closed(0, {}, state, step)

    def _begin(self, step: int, leader: int) -> None:
        self.step, self._arrived = step, None
        self._vote = Vote(self._mail.rank, self._mail.world_size, leader)
        self._need.clear()
        for kept in (self._own, self._sent):
            for old in [each for each in kept if each < step - 1]:
                del kept[old]
        for key in [each for each in self._contributions if each[0] < step]:
            del self._contributions[key]
        self._early = [letter for letter in self._early if Header(*letter.header).step >= step]
