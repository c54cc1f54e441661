"""Policies at work on one hook: facts go to them, and what they decide goes to the hook."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from q7x2._core.runner import GradientSums, Row
from q7x2.policy.policy import Decision, Facts, ParameterPolicy, Policy, Verdict, facts_of

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from q7x2._core.runner import Steered, StepFacts


class PolicyDriver:
    """Asks policies before each forward if a reduction has ended, and tells the hook what changed.

    Args:
        policies: In order: a later one replaces what an earlier one decided about a parameter, the
            largest cadence holds, and what any of them measures is measured.
        parameters: The model's, by name.
    """

    def __init__(
        self, policies: Sequence[Policy], parameters: Sequence[tuple[str, torch.Tensor]]
    ) -> None:
        self.policies = list(policies)
        self.names = [name for name, _ in parameters]
        self.cadence = 1
        self._last: tuple[list[Row], bool, list[str]] | None = None  # what the hook was told
        self._candidates: list[str] = []
        numels = {name: parameter.numel() for name, parameter in parameters}
        for policy in self.policies:
            policy.bind(numels)

    def start(self, runner: Steered, step: int) -> None:
        """Decide without new facts: the hook is new, or its policies have changed their minds.

        Args:
            step: The next reduction.

        Raises:
            ValueError: The hook cannot do what a policy decided.
        """
        self._last = None
        self._decide(runner, step, None)

    def check(self, runner: Steered) -> None:
        """Raise ValueError unless the hook can do all that the policies may decide."""
        for policy in self.policies:
            for decision in policy.possible():
                runner.decide(self._rows(decision), False, [])

    def follow(self, runner: Steered) -> None:
        """Decide if a reduction has ended since the last call."""
        raw = runner.take_facts()
        if raw is not None:
            self._decide(runner, raw["step"] + 1, self._facts(raw))

    def _facts(self, raw: StepFacts) -> Facts:
        gradients = {
            self.names[number]: facts_of(GradientSums(*sums), self._candidates)
            for number, sums in raw["gradients"].items()
        }
        return Facts(
            raw["step"], raw["is_finite"], raw["step_seconds"], raw["wire_seconds"], gradients
        )

    def _decide(self, runner: Steered, step: int, facts: Facts | None) -> None:
        merged = merge([policy.decide(step, facts) for policy in self.policies])
        self.cadence = merged.cadence
        told = (self._rows(merged), merged.measures, list(merged.candidates))
        if told != self._last:
            runner.decide(*told)
            self._last, self._candidates = told, told[2]

    def _rows(self, decision: Decision) -> list[Row]:
        plain = ParameterPolicy()
        return [_row(decision.parameters.get(name, plain)) for name in self.names]

    def observe(self, loss: float, step: int) -> Verdict:
        """What the policies together say: one is enough for a divergence."""
        verdicts = [policy.observe(loss, step) for policy in self.policies]
        return Verdict.DIVERGED if Verdict.DIVERGED in verdicts else Verdict.GOOD

    def validation_due(self, step: int) -> bool:
        return any(policy.validation_due(step) for policy in self.policies)

    def snapshot(self) -> list[dict[str, Any]]:
        return [policy.state_dict() for policy in self.policies]

    def to_text(self) -> str:
        """The snapshots as one object, which a distributed checkpoint keeps and loads whole."""
        return json.dumps(self.snapshot())

    def load(self, snapshots: Sequence[Mapping[str, Any]]) -> None:
        """Take over what :meth:`snapshot` gave; ValueError if the policies are others."""
        mine = [type(policy).__name__ for policy in self.policies]
        theirs = [snapshot["policy"] for snapshot in snapshots]
        if mine != theirs:
            raise ValueError(f"expected the state of the policies {mine}, got that of {theirs}")
        before = self.snapshot()
        try:
            for policy, snapshot in zip(self.policies, snapshots, strict=True):
                policy.load_state_dict(snapshot)
        except Exception:
            for policy, snapshot in zip(self.policies, before, strict=True):
                policy.load_state_dict(snapshot)
            raise

    def roll_back(self, snapshots: Sequence[Mapping[str, Any]]) -> None:
        for policy, snapshot in zip(self.policies, snapshots, strict=True):
            policy.roll_back(snapshot)


def merge(decisions: Sequence[Decision]) -> Decision:
    """One decision of those of several policies, in their order."""
    parameters: dict[str, ParameterPolicy] = {}
    candidates: dict[str, None] = {}
    for decision in decisions:
        for name, policy in decision.parameters.items():
            last = parameters.get(name, ParameterPolicy())
            chosen = policy if policy.level else last
            parameters[name] = ParameterPolicy(
                chosen.codec, policy.whole, policy.skip, rank=chosen.rank
            )
        candidates |= dict.fromkeys(decision.candidates)
    return Decision(
        parameters,
        max((decision.cadence for decision in decisions), default=1),
        any(decision.measures for decision in decisions),
        tuple(candidates),
    )


def check_same_policies(policies: Sequence[Policy], *groups: ProcessGroup) -> None:
    """Raise ValueError, on all ranks, where one has other policies than another.

    Args:
        groups: Which together connect all ranks: of a mesh, one per dimension.
    """
    from q7x2._core.agreement import check_agreement

    check_agreement("policies", {"policies": list(policies)}, groups)


def checked_policies(policy: Policy | Sequence[Policy] | None) -> list[Policy]:
    """As a list; TypeError for anything that is no policy."""
    policies = [] if policy is None else [policy] if isinstance(policy, Policy) else list(policy)
    for each in policies:
        if not isinstance(each, Policy):
            raise TypeError(f"policy must be a q7x2.policy.Policy, or a list of them, got {each!r}")
    return policies


def snapshots_in(text: str) -> list[dict[str, Any]]:
    """What :meth:`PolicyDriver.to_text` was made of; ValueError for any other text."""
    snapshots: list[dict[str, Any]] = json.loads(text)
    return snapshots


def _row(policy: ParameterPolicy) -> Row:
    return Row(policy.whole, policy.skip, policy.level)
