"""How the options of OverlapOptions are chosen: the simulation, the measurement, the timeline."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from forward_overlap_training import RING, Pair, adamw, loss_of
from pairs import nightly
from q7x2.cli import main
from q7x2.overlap.choice import choose
from q7x2.overlap.first import FirstSteps
from q7x2.overlap.meter import slowdowns
from q7x2.overlap.model import BucketCosts, Moments, StepCosts, pieces_of, simulate
from q7x2.overlap.modules import Needs
from q7x2.overlap.order import SliceLengths
from q7x2.overlap.timeline import ForwardTimeline, TimelineRecorder
from torch import nn
from values import assert_bits

MORE = "other steps of the same measurement"
FIRST = 7  # steps with DDP's all-reduces, of which the first one is not measured

# ---- the simulation ------------------------------------------------------------------------------


def costs(
    ready: tuple[float, float] = (1.0, 2.0),
    forward: float = 1.0,
    wire: float = 2.0,
    latency: float = 0.0,
    slowdown: tuple[float, float] = (1.0, 1.0),
    step: float = 0.0,
    other: float = 0.0,
) -> StepCosts:
    """Two buckets of one parameter; forward needs that of the first bucket when it is half over."""
    buckets = (
        BucketCosts(ready[0], ("last",), (0,), (forward / 2,), 1000, 4, None),
        BucketCosts(ready[1], ("first",), (0,), (0.0,), 1000, 4, None),
    )
    return StepCosts(forward, buckets, step, 0.0, other, wire, latency, *slowdown, ddp=9.0)


def step_seconds(made: StepCosts, window: int = 2, early: float = 0.0) -> float:
    return simulate(pieces_of(made, 1 << 20, 2), made, window, early, 2)[0]


def test_a_step_is_what_its_parts_add_up_to() -> None:
    # Reduce-scatters at 1 and 2, all-gathers from 2.5 to 3.5; the first layer waits half a second.
    assert step_seconds(costs()) == pytest.approx(4.0)
    assert step_seconds(costs(wire=0.0)) == pytest.approx(3.0)
    # Computation at half its speed for half a second of each of backward and forward.
    assert step_seconds(costs(slowdown=(2.0, 1.0))) == pytest.approx(4.5)
    # Messages at half their speed: from 1 to 2, and from 3 on, when forward is under way.
    assert step_seconds(costs(slowdown=(1.0, 2.0))) == pytest.approx(4.25)
    # Each rank steps on its half of the weights, one parameter after the other.
    assert step_seconds(costs(wire=0.0, step=1.0, other=0.25)) == pytest.approx(3.75)


def test_with_a_wider_window_latencies_overlap() -> None:
    made = costs(latency=0.1)
    assert step_seconds(made, window=1) == pytest.approx(4.3)
    assert step_seconds(made, window=2) == pytest.approx(4.2)


def test_steps_during_backward_use_the_time_in_which_the_network_is_idle() -> None:
    made = costs(ready=(0.5, 2.0), forward=0.2, wire=2.4)
    assert step_seconds(made) == pytest.approx(3.9)
    assert step_seconds(made, early=0.5) == pytest.approx(3.4)


def test_moments_are_in_the_order_of_a_chunk() -> None:
    made = costs(latency=0.01, step=0.1)
    _, moments = simulate(pieces_of(made, 1000, 2), made, 1, 0.0, 2)
    assert [each.parameter for each in moments] == ["first"] * 4 + ["last"] * 4
    assert sum(each.bytes for each in moments) == 8000
    for each in moments:
        assert each.ready < each.scattered < each.stepped < each.gathered


def test_a_chunk_is_needed_with_the_first_of_its_parameters() -> None:
    bucket = BucketCosts(1.0, ("a", "b", "c"), (0, 600, 800), (0.3, 0.2, 0.1), 1000, 4, None)
    made = StepCosts(1.0, (bucket,), 0, 0, 0, 1, 0, 1, 1, 1)
    pieces = pieces_of(made, 2000, 2)
    assert [(each.parameter, each.needed) for each in pieces] == [("a", 0.3), ("c", 0.1)]


# ---- the choice ----------------------------------------------------------------------------------


def large(latency: float) -> StepCosts:
    """64 MiB in one bucket, of many parameters that forward needs one after the other."""
    count, length = 64, 1 << 18
    bucket = BucketCosts(
        ready=2.0,
        names=tuple(f"layer{i}" for i in range(count)),
        begins=tuple(range(0, count * length, length)),
        needed=tuple(1.0 - (i + 1) / count for i in range(count)),
        length=count * length,
        element_size=4,
        slice_length=None,
    )
    return StepCosts(1.0, (bucket,), 0.1, 0.0, 0.0, 2.0, latency, 1.0, 1.0, 5.0)


def test_the_fastest_candidate_with_the_fewest_chunks_is_chosen() -> None:
    candidates, moments = choose(large(1e-4), q7x2.overlap.OverlapOptions(), 4)
    best = candidates[0]
    assert len(candidates) > 10
    assert best.chunks > 1
    assert len(moments) == best.chunks
    fastest = min(each.seconds for each in candidates)
    assert best.seconds <= 1.02 * fastest
    for each in candidates:
        if each.seconds <= 1.02 * fastest:
            assert (best.chunks, best.window) <= (each.chunks, each.window)


def test_where_messages_are_slow_to_begin_there_are_few_chunks() -> None:
    few, many = (
        choose(large(x), q7x2.overlap.OverlapOptions(), 4)[0][0].chunks for x in (0.3, 1e-5)
    )
    assert few < many


def test_given_options_are_kept() -> None:
    options = q7x2.overlap.OverlapOptions(chunk_bytes=3 << 20, early=None)
    candidates, _ = choose(large(1e-3), options, 4)
    assert {each.chunk_bytes for each in candidates} == {3 << 20}
    assert len({each.early for each in candidates}) > 1
    candidates, _ = choose(large(1e-3), q7x2.overlap.OverlapOptions(window=3), 4)
    assert {(each.window, each.early) for each in candidates} == {(3, 0.0)}


@pytest.mark.parametrize(
    ("alone", "shared", "wire", "tail", "expected"),
    [
        (1.0, 1.0, 1.0, 1.0, (1.0, 1.0)),  # nothing was carried meanwhile
        (1.0, 2.0, 3.0, 2.0, (2.0, 2.0)),  # a third of the messages, in all of a longer backward
        (2.0, 2.5, 1.0, 0.0, (2.0, 1.0)),  # all messages, in a part of backward
        (1.0, 0.9, 3.0, 2.0, (1.0, 1.0)),  # a backward that was faster by chance
        (1.0, 9.0, 3.0, 2.0, (4.0, 4.0)),  # one that was disturbed
    ],
)
def test_slowdowns(
    alone: float, shared: float, wire: float, tail: float, expected: tuple[float, float]
) -> None:
    assert slowdowns(alone, shared, wire, tail) == pytest.approx(expected)


# ---- the measured steps --------------------------------------------------------------------------


class Bucket:
    """A bucket of DDP with one parameter."""

    def __init__(self, parameter: torch.Tensor, index: int, is_last: bool) -> None:
        self._parameter, self._index, self._is_last = parameter, index, is_last
        self._buffer = torch.full((parameter.numel(),), 1.0 + dist.get_rank())

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        return [self._buffer]

    def parameters(self) -> list[torch.Tensor]:
        return [self._parameter]

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._is_last


@pytest.mark.ranks(2)
def test_in_every_second_step_all_reduces_wait_for_the_end_of_backward() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    names = {p: name for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cpu = torch.device("cpu")
    group = dist.group.WORLD
    assert group is not None
    first = FirstSteps(q7x2.overlap.OverlapOptions(), names, group, cpu)
    for backward in range(FIRST):
        assert not first.are_over
        first.begin_forward()
        first.end_forward()
        futures = []
        for index, p in enumerate(reversed(list(names))):
            futures.append(first.reduce(Bucket(p, index, index == 1)))
            if index == 0 and backward > 0 and backward % 2 == 1:
                assert not futures[0].done()
            elif index == 0:
                futures[0].wait()
        for future in futures:
            assert_bits(future.wait(), torch.full((64,), 1.5))
        first.begin_step()
        first.end_step()
    assert first.are_over
    needs = Needs(model)
    needs.note(model[0])
    needs.note(model[1])
    chosen, timeline = first.choose(optimizer, needs, SliceLengths(group, cpu))
    assert timeline is not None
    assert chosen.window == timeline.candidates[0].window
    assert [bucket.names for bucket in timeline.costs.buckets] == [("1.weight",), ("0.weight",)]


# ---- trainings -----------------------------------------------------------------------------------

beyond = pytest.mark.beyond("gloo", "a reduce-scatter sums in another order than an all-reduce")


def check_chosen(pair: Pair, steps: int) -> None:
    """The weights are DDP's, and all ranks have chosen the same."""
    timeline = pair.attached.timeline
    assert timeline is not None
    assert pair.attached.stats.steps == steps - FIRST
    assert pair.attached.stats.chunks == timeline.candidates[0].chunks == len(timeline.predicted)
    choices: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(choices, (timeline.costs, timeline.candidates, timeline.predicted))
    assert all(each == choices[0] for each in choices)


@beyond
@pytest.mark.parametrize("early", [None, nightly(0.0, "the default, which the next test has")])
@pytest.mark.ranks(
    2,
    nightly(3, "a minute: the same with more ranks"),
    env=RING,
    stays=True,
    deadline=240,
    timeout=120,
)
def test_weights_have_the_bits_of_ddp_whatever_is_chosen(early: float | None) -> None:
    pair = Pair(adamw, overlap=q7x2.overlap.OverlapOptions(early=early))
    steps = FIRST + 10
    pair.train(range(FIRST))
    assert pair.attached.timeline is None
    pair.train(range(FIRST, steps))
    pair.assert_equal()
    check_chosen(pair, steps)
    timeline = pair.attached.timeline
    assert timeline is not None
    assert timeline.measured_seconds is not None
    assert len(timeline.measured) == len(timeline.predicted)
    for each in timeline.measured:
        assert 0 < each.ready < each.scattered
        assert 0 < each.stepped < each.gathered
        assert each.stepped < each.needed


@beyond
@pytest.mark.ranks(2, env=RING, stays=True)
def test_steps_that_accumulate_and_evaluate_are_measured() -> None:
    pair = Pair(adamw, overlap=None)
    for step in range(12):
        for ddp, optimizer in pair.both():
            with ddp.no_sync():
                loss_of(ddp, 100 + step).backward()
            with torch.no_grad():
                loss_of(ddp, step)
            loss_of(ddp, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    pair.assert_equal()
    check_chosen(pair, 12)


@pytest.mark.ranks(2, env=RING, stays=True)
def test_a_rank_that_does_not_step_leaves_the_choice_to_the_defaults() -> None:
    pair = Pair(adamw, overlap=None)
    for step in range(12):
        loss_of(pair.ours, step).backward()
        if dist.get_rank() == 0 or step >= FIRST:
            pair.optimizers[1].step()
        pair.optimizers[1].zero_grad()
    assert pair.attached.timeline is None
    assert pair.attached.stats.steps == 12 - FIRST


@beyond
@pytest.mark.parametrize("before", [nightly(1, MORE), 3, nightly(4, MORE)])
@pytest.mark.ranks(2, env=RING, stays=True)
def test_the_end_while_it_measures(before: int) -> None:
    pair = Pair(adamw, overlap=None)
    pair.train(range(before))
    pair.attached.finish()
    pair.train(range(before, before + 4))
    pair.assert_equal()
    assert pair.attached.timeline is None


@beyond
@pytest.mark.ranks(2, env=RING, stays=True)
def test_an_exception_in_a_measured_backward() -> None:
    pair = Pair(adamw, overlap=None)
    for step in range(12):
        if step in (2, 3):
            for ddp, _ in pair.both():
                loss = loss_of(ddp, step)
                loss.register_hook(_fail)
                with pytest.raises(ArithmeticError):
                    loss.backward()
        pair.train(range(step, step + 1))
    pair.assert_equal()


def _fail(_: torch.Tensor) -> None:
    raise ArithmeticError


# ---- the timeline --------------------------------------------------------------------------------


def timeline() -> ForwardTimeline:
    made = costs()
    candidates, moments = choose(made, q7x2.overlap.OverlapOptions(), 2)
    measured = [Moments(each.parameter, each.bytes, 1, 2, 3, 4, 5) for each in moments]
    return ForwardTimeline(made, tuple(candidates), tuple(moments), tuple(measured), 4.4)


class Scattered:
    """A chunk whose reduce-scatter a test ends."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] = []

    def when_scattered(self, call: Callable[[Any], None]) -> None:
        self.callbacks.append(call)


def test_a_reduce_scatter_whose_callback_comes_in_the_next_step_is_not_of_that_step() -> None:
    recorder = TimelineRecorder(timeline(), 2)
    recorder.end_forward()
    chunk = Scattered()
    while not recorder.is_done:
        recorder.follow(0, chunk)
        for late in chunk.callbacks[:-1]:
            late(None)
        time.sleep(1e-3)
        recorder.note("stepped", 0)
        recorder.note("scattered", 0)
        recorder.end_forward()
    first = recorder.timeline.measured[0]
    assert 0 < first.ready < first.stepped < first.scattered


def test_a_timeline_as_text() -> None:
    text = str(timeline())
    assert "step: predicted 4 s, measured 4.4 s (+10%)" in text
    assert max(map(len, text.splitlines())) <= 80
    last = text.splitlines()[-1].split()
    assert last == ["last", "3.91", "KiB", *(f"{p}/{m}000" for p, m in _LAST)]


_LAST = ((1000, 1), (1500, 2), (2500, 3), (3500, 4), (3500, 5))


def test_a_timeline_is_saved_and_shown(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "timeline.json"
    timeline().save(path)
    assert ForwardTimeline.load(path) == timeline()
    assert main(["plan", "timeline", str(path)]) == 0
    assert capsys.readouterr().out == f"{timeline()}\n"
    assert main(["plan", "timeline", str(path), "--json"]) == 0
    assert '"candidates"' in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"costs": {"buckets": [3]}}'])
def test_a_file_that_is_no_timeline(
    content: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "timeline.json"
    assert main(["plan", "timeline", str(path)]) == 1  # there is none
    path.write_text(content)
    assert main(["plan", "timeline", str(path)]) == 1
    assert capsys.readouterr().err.count("q7x2 plan timeline: ") == 2
