"""Tunes: searches settings on some networks, and validates the winner on one that it has not seen.

A setting that was chosen for its measurements looks better than it is, and may suit one network
only. So the winner runs in pairs with the old setting on the held-out network, with seeds that the
search has not used. It is adopted if the whole interval of its gain there is beyond the margin.
Otherwise the old setting stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import subprocess
from collections.abc import Callable, Iterator, Sequence

from q7x2.experiment import folder as experiment_folder
from q7x2.experiment.file import CONFIDENCE
from q7x2.experiment.program import Case, ExperimentError, run_once
from q7x2.experiment.run import Verdict, change, in_turn, judge
from q7x2.experiment.search import Found, Measure, Setting, search
from q7x2.experiment.tune_file import Network, Tuning

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a tuning has found.

    Attributes:
        old: The values of the old setting, by variable.
        winner: Those of the setting that the search chose; None if all others failed.
        gains: By network of the search, the winner's median gain. The search chose it for these
            gains, so they are too large.
        pairs: How many pairs of runs each of them has.
        failed: Settings that were left out, because a run of them failed.
        held_out: The winner on the held-out network; None if it did not run there, or failed.
        adopt: Whether the winner is proven better there.
        why: That as a sentence.
    """

    old: dict[str, str]
    winner: dict[str, str] | None
    gains: dict[str, float]
    pairs: int
    failed: list[dict[str, str]]
    held_out: Verdict | None
    adopt: bool
    why: str


def run(tuning: Tuning, directory: pathlib.Path, say: Say) -> Outcome:
    """Run what is missing, and decide. ``say`` is told how far it is.

    Raises:
        ExperimentError: The old setting failed, or a network could not be started or stopped. What
            has succeeded is kept.
        OSError: The directory cannot be written to.
    """
    experiment_folder.claim(tuning, directory)
    outcome = decide(tuning, _Runs(tuning, directory, say).measure)
    text = json.dumps(dataclasses.asdict(outcome), indent=2)
    (directory / "tuning.json").write_text(text + "\n")
    return outcome


def decide(tuning: Tuning, measure: Measure) -> Outcome:
    """Search and validate with a function that runs settings."""
    found = search(tuning, lambda *pair: _gain(tuning, change(tuning, *pair)), measure)
    verdict, adopt, why = _validate(tuning, found, measure)
    return Outcome(
        old=_named(tuning, tuning.old),
        winner=None if found.winner is None else _named(tuning, found.winner),
        gains=found.gains,
        pairs=found.pairs,
        failed=[_named(tuning, each) for each in found.failed],
        held_out=verdict,
        adopt=adopt,
        why=why,
    )


def _validate(tuning: Tuning, found: Found, measure: Measure) -> tuple[Verdict | None, bool, str]:
    winner, name, margin = found.winner, tuning.held_out.name, f"{100 * tuning.margin:g} %"
    if winner is None:
        return None, False, "all other settings failed"
    worst = min(found.gains, key=found.gains.__getitem__)
    if found.gains[worst] <= tuning.margin:
        return None, False, f"no setting gained more than the margin of {margin} on {worst}"
    values = measure(tuning.held_out, tuning.seeds, [tuning.old, winner])
    if winner not in values:
        return None, False, f"the winner failed on {name}"
    text = _text(_named(tuning, winner))
    verdict = judge(tuning, text, values[tuning.old], values[winner], CONFIDENCE)
    if verdict.verdict == "better":
        return verdict, True, f"its interval on {name} is beyond the margin of {margin}"
    return verdict, False, f"the winner is not proven better by more than {margin} on {name}"


def _gain(tuning: Tuning, change: float) -> float:
    return change if tuning.is_larger_better else -change


def _named(tuning: Tuning, setting: Setting) -> dict[str, str]:
    return {each.name: value for each, value in zip(tuning.variables, setting, strict=True)}


def _text(setting: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in setting.items())


class _Runs:
    """Runs settings in turns, and writes down what each run has measured: None if it failed."""

    def __init__(self, tuning: Tuning, directory: pathlib.Path, say: Say) -> None:
        self._tuning = tuning
        self._directory = directory
        self._say = say
        self._known: dict[tuple[str, int, Setting], float | None] = {
            (row["network"], row["seed"], tuple(row["setting"])): row["metric"]
            for row in experiment_folder.rows(directory)
        }

    def measure(
        self, network: Network, seeds: Sequence[int], settings: Sequence[Setting]
    ) -> dict[Setting, list[float]]:
        left = list(settings)
        with contextlib.ExitStack() as stack:
            is_up = False
            for seed in seeds:
                missing = [each for each in left if (network.name, seed, each) not in self._known]
                if missing and not is_up:
                    stack.enter_context(self._up(network))
                    is_up = True
                self._turn(network, seed, in_turn(missing, seed))
                left = [each for each in left if self._known[network.name, seed, each] is not None]
        values = {each: [self._known[network.name, seed, each] for seed in seeds] for each in left}
        return {each: [one for one in some if one is not None] for each, some in values.items()}

    def _turn(self, network: Network, seed: int, settings: Sequence[Setting]) -> None:
        """All of them once. A failure is written down once the old setting has run as well."""
        failed = []
        for setting in settings:
            self._say(f"{network.name}, seed {seed}: {_text(_named(self._tuning, setting))}")
            try:
                metric = self._run(network, seed, setting)
            except ExperimentError as error:
                if setting == self._tuning.old:
                    raise
                self._say(str(error))
                failed.append(setting)
            else:
                self._keep(network, seed, setting, metric)
        for setting in failed:
            self._keep(network, seed, setting, None)

    def _run(self, network: Network, seed: int, setting: Setting) -> float:
        tuning = self._tuning
        case = Case(network.launcher, network.environment).having(tuning.variables, setting)
        names = [each.name for each in (*tuning.networks, tuning.held_out)]
        places = [
            str((each.baseline, *each.variants).index(value))
            for each, value in zip(tuning.variables, setting, strict=True)
        ]
        name = f"network{names.index(network.name)}-seed{seed}-setting{'.'.join(places)}"
        return run_once(tuning, seed, case, self._directory / "runs" / name)

    def _keep(self, network: Network, seed: int, setting: Setting, metric: float | None) -> None:
        row = {"network": network.name, "seed": seed, "setting": setting, "metric": metric}
        experiment_folder.add(self._directory, row)
        self._known[network.name, seed, setting] = metric

    @contextlib.contextmanager
    def _up(self, network: Network) -> Iterator[None]:
        self._command(network, network.start)
        try:
            yield
        finally:
            self._command(network, network.stop)

    def _command(self, network: Network, words: Sequence[str]) -> None:
        if not words:
            return
        what = f"{' '.join(words)!r} for {network.name}"
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=self._tuning.timeout
            )
        except subprocess.TimeoutExpired:
            raise ExperimentError(f"{what} took longer than {self._tuning.timeout:g} s") from None
        if done.returncode != 0:
            raise ExperimentError(
                f"{what} ended with status {done.returncode}:\n{done.stdout}{done.stderr}"
            )


def lines(tuning: Tuning, outcome: Outcome) -> list[str]:
    """The report, without an end of line."""
    better = "larger" if tuning.is_larger_better else "smaller"
    found = [f"{tuning.name}: {tuning.metric}, {better} is better"]
    found.append(f"old: {_text(outcome.old)}")
    found += [f"left out, since a run failed: {_text(each)}" for each in outcome.failed]
    if outcome.winner is not None:
        found.append(f"winner of the search: {_text(outcome.winner)}")
    for name, gain in outcome.gains.items():
        found.append(
            f"gain on {name}, where it was chosen: {100 * gain:+.2f} % ({outcome.pairs} pairs)"
        )
    if (each := outcome.held_out) is not None:
        low, high = sorted(_gain(tuning, bound) for bound in (each.low, each.high))
        found.append(
            f"gain on {tuning.held_out.name}, where it was not: "
            f"{100 * _gain(tuning, each.change):+.2f} % ({100 * low:+.2f} to {100 * high:+.2f} at "
            f"{100 * CONFIDENCE:g} %, {len(tuning.seeds)} pairs)"
        )
    what = "adopt the winner" if outcome.adopt else "keep the old setting"
    found.append(f"{what}: {outcome.why}")
    return found
