"""The order of gradients, the lag of ranks and the modes that follow it, without processes."""

from __future__ import annotations

import json
import random

import pytest
import q7x2
from q7x2.late.lag import MODES, mode_of
from q7x2.late.log import Applied, Log


def log(mode: object = "eager", ranks: int = 4, staleness: int = 16, buffer: int = 2) -> Log:
    return Log(ranks, staleness, buffer, mode_of(mode))


def entry(of: Log, *ranks: int, version: int | None = None, seconds: float = 1.0) -> None:
    base = of.version if version is None else version
    of.add([Applied(rank, base, seconds) for rank in ranks])


# ---- what the next entry has ---------------------------------------------------------------------


def test_eager_takes_one_buffered_the_first_ones_and_epochs_all() -> None:
    assert log("eager").next([2, 0], ()) == [2]
    assert log("eager").next([], ()) is None
    assert log("buffered").next([3], ()) is None
    assert log("buffered").next([3, 1, 0], ()) == [1, 3]
    assert log("epochs").next([3, 1, 0], ()) is None
    assert log("epochs").next([3, 1, 0, 2], ()) == [0, 1, 2, 3]


def test_ranks_that_have_finished_are_not_waited_for() -> None:
    assert log("epochs").next([3, 1], {0, 2}) == [1, 3]
    assert log("buffered").next([3], {0, 1, 2}) == [3]
    assert log("buffered").next([], {0, 1, 2, 3}) is None


def test_without_staleness_each_entry_has_all_ranks() -> None:
    for mode in MODES:
        each = log(mode, staleness=0)
        for _ in range(3):
            assert each.next([3, 1, 0], ()) is None
            assert each.next([3, 1, 0, 2], ()) == [0, 1, 2, 3]
            entry(each, 0, 1, 2, 3)


def test_an_entry_waits_for_the_rank_that_would_be_too_stale() -> None:
    eager = log(staleness=2, ranks=3)
    entry(eager, 1)
    entry(eager, 1)
    # Version 2: gradients of ranks 0 and 2 may have version 0, and may not be older than 2.
    assert eager.next([1], ()) is None
    assert eager.next([1, 0], ()) is None
    assert eager.next([1, 0, 2], ()) == [0, 2]
    eager.settle()
    assert eager.next([1], ()) == [1]


@pytest.mark.parametrize("seed", range(20))
def test_random_orders_never_exceed_the_bound_and_never_wait_for_ever(seed: int) -> None:
    chance = random.Random(seed)
    ranks, staleness = chance.randint(1, 6), chance.randint(0, 8)
    buffer = chance.randint(1, ranks)
    modes = [chance.choice(MODES) for _ in range(200)]
    case = f"seed {seed}: {ranks} ranks, staleness {staleness}, buffer {buffer}"
    each = Log(ranks, staleness, buffer, lambda facts: modes[facts.steps % 200])
    bases, waiting = [0] * ranks, []
    while each.version < 300:
        idle = [rank for rank in range(ranks) if rank not in waiting]
        chosen = each.next(waiting, ())
        if chosen is None:
            assert idle, f"{case}: nobody computes, and version {each.version} waits"
            waiting.append(chance.choice(idle))
            continue
        for rank in chosen:
            assert each.version - bases[rank] <= staleness, case
        each.add([Applied(rank, bases[rank], 1.0) for rank in chosen])
        for rank in chosen:
            waiting.remove(rank)
            bases[rank] = each.version


# ---- the lag -------------------------------------------------------------------------------------


def test_equal_ranks_have_a_lag_of_one_without_spread() -> None:
    eager = log()
    for round_ in range(50):
        for rank in range(4):
            entry(eager, rank, version=max(0, 4 * (round_ - 1) + rank + 1))
    assert eager.facts.mean == pytest.approx(1, abs=0.01)
    assert eager.facts.spread == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("mode", ["eager", "epochs"])
def test_the_lag_of_a_slow_rank_is_how_much_slower_it_is(mode: str) -> None:
    """Rank 3 takes three times as long: measured by staleness, and in epochs by times."""
    each = log(mode)
    for round_ in range(50):
        if mode == "epochs":
            each.add([Applied(rank, each.version, 3.0 if rank == 3 else 1.0) for rank in range(4)])
            continue
        begin = 10 * round_
        for turn in range(3):
            for rank in range(3):
                entry(each, rank, version=max(0, each.version - 2 - (turn == 0 and round_ > 0)))
        entry(each, 3, version=begin)
    facts = each.facts
    assert 2.5 < facts.mean + facts.spread < 4.5
    assert 2 < facts.spread < 2.7


# ---- modes ---------------------------------------------------------------------------------------


def facts(lag: float, mode: str, since: int = 100) -> q7x2.late.LagFacts:
    return q7x2.late.LagFacts(1000, mode, since, lag, 0.0)


def test_a_mode_follows_the_lag_with_a_margin() -> None:
    follow = q7x2.late.FollowLag(buffered=3, epochs=10, margin=0.5, hold=5)
    cases = {
        "eager": [(2.9, "eager"), (3.1, "buffered"), (11, "epochs")],
        "buffered": [(1.4, "eager"), (1.6, "buffered"), (9, "buffered"), (11, "epochs")],
        "epochs": [(5.1, "epochs"), (4.9, "buffered"), (1.4, "eager")],
    }
    for mode, expected in cases.items():
        for lag, wanted in expected:
            assert follow(facts(lag, mode)) == wanted, (mode, lag)
            assert follow(facts(lag, mode, since=4)) == mode


def test_a_lag_that_swings_around_a_limit_switches_once() -> None:
    follow, mode, switches = q7x2.late.FollowLag(hold=1), "eager", 0
    for turn in range(100):
        wanted = follow(facts(3.0 + 0.3 * (-1) ** turn, mode))
        switches += wanted != mode
        mode = wanted
    assert (mode, switches) == ("buffered", 1)


def test_the_history_and_its_state() -> None:
    each = log(q7x2.late.FollowLag(buffered=2, epochs=8, hold=2), staleness=40)
    for _ in range(30):
        for rank in range(3):
            entry(each, rank)
    entry(each, 3, version=each.version - 40)
    assert [(event.steps, event.mode) for event in each.history] == [(0, "eager"), (91, "epochs")]
    assert each.history[1].spread == pytest.approx(40 / 3)
    each.settle()
    saved = json.loads(json.dumps(each.state))
    # As 0.1.0a1 saved it.
    assert list(saved["history"][1]) == ["version", "mode", "mean", "spread"]
    again = Log(4, 40, 2, mode_of(q7x2.late.FollowLag(buffered=2, epochs=8, hold=2)), saved)
    assert again.state == saved
    assert again.facts == each.facts
    other = Log(4, 40, 2, mode_of("buffered"), saved)
    assert [event.mode for event in other.history] == ["eager", "epochs", "buffered"]


def test_mistakes_in_modes() -> None:
    for error, options in (
        ("buffered must be positive", {"buffered": 0}),
        ("epochs must be positive", {"epochs": -1}),
        ("epochs must be more than buffered", {"buffered": 5, "epochs": 5}),
        ("margin must be at least 0 and less than 1", {"margin": 1}),
        ("hold must be at least 1", {"hold": 0}),
    ):
        with pytest.raises(ValueError, match=error):
            q7x2.late.FollowLag(**options)
    with pytest.raises(ValueError, match="mode must be one of eager, buffered, epochs"):
        mode_of("lazy")
    with pytest.raises(ValueError, match="mode must be one of"):
        log(lambda facts: "lazy")
