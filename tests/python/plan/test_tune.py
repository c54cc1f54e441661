"""The tuner on real ranks: what was measured decides, equally on all ranks, now and later."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
from q7x2 import cli
from q7x2._core.extension import load
from q7x2.fabric import files as fabric_files
from q7x2.plan import tuning as plan_tuning
from q7x2.plan.tuning_request import COLLECTIVES
from values import assert_bits, integers

SIZE = 2**16
QUICK: dict[str, Any] = {"candidates": 3, "seconds": 0.02}

pytestmark = pytest.mark.beyond("gloo", "has nothing to tune")


def backend_of(group: dist.ProcessGroup | None = None) -> Any:
    world: Any = group or dist.group.WORLD
    return world._get_backend(torch.device("cpu"))


def on_all_ranks(mine: Any) -> list[Any]:
    everybodys: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybodys, mine)
    return everybodys


def choice(size: int, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """What the planner takes for an all_reduce, by the Fabric that the group chooses by."""
    extension = load()
    best: dict[str, Any] = extension.explain("all_reduce", size, backend_of(group).fabric_json)[0]
    return best


def check_sums(group: dist.ProcessGroup | None = None) -> None:
    for count in (1, SIZE // 4 - 1, SIZE // 4, SIZE):
        for dtype in (torch.float32, torch.bfloat16):
            tensor = integers(dist.get_rank(), count, dtype)
            dist.all_reduce(tensor, group=group)
            assert_bits(tensor, total(dist.get_world_size(), count, dtype), (count, dtype))


@functools.cache
def total(ranks: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    parts = [integers(rank, count, dtype).to(torch.float64) for rank in range(ranks)]
    return torch.stack(parts).sum(0).to(dtype)


@contextmanager
def own_catalogue(folder: str) -> Iterator[Path]:
    before = os.environ["XDG_CACHE_HOME"]
    os.environ["XDG_CACHE_HOME"] = folder
    try:
        yield Path(folder) / "q7x2"
    finally:
        os.environ["XDG_CACHE_HOME"] = before


def slow_down(monkeypatch: pytest.MonkeyPatch, victims: set[str], seconds: float) -> None:
    """On this rank calls that force one of the ``victims`` are measured as slower than they are."""
    measure = plan_tuning.Tuner.seconds_of

    def slower(self: Any, call: Any, name: str, repeat: int) -> float:
        return measure(self, call, name, repeat) + (seconds if name in victims else 0.0)

    monkeypatch.setattr(plan_tuning.Tuner, "seconds_of", slower)


def test_a_slow_phase_of_the_machine_does_not_decide() -> None:
    """The second takes longer in all rounds but one, and its median time is the lesser one."""
    rounds = [[1.0, 1.1], [1.0, 1.1], [8.0, 1.1], [8.0, 8.8], [8.0, 8.8]]
    first, second = plan_tuning.usual_seconds(rounds)
    assert second / first == pytest.approx(1.1)


@pytest.mark.ranks(2, fresh=True)
def test_equal_plans_are_tried_once(world_size: int, shared: str) -> None:
    with own_catalogue(shared):
        results = q7x2.tune(sizes=[SIZE], **QUICK)
    names = [each.algorithm for each in results]
    assert len(set(names)) == len(names) > 1


@pytest.mark.ranks(2, 4, fresh=True)
def test_the_measured_best_is_chosen_on_all_ranks(world_size: int, shared: str) -> None:
    small_before = choice(64)
    with own_catalogue(shared):
        results = q7x2.tune(sizes=[SIZE], **QUICK)
    assert all(theirs == results for theirs in on_all_ranks(results))
    assert len(results) >= min(QUICK["candidates"], 2)
    assert {(each.collective, each.bytes) for each in results} == {("all_reduce", SIZE)}
    (chosen,) = (each for each in results if each.chosen)
    assert chosen.measured == min(each.measured for each in results) > 0
    assert chosen.algorithm == choice(SIZE)["algorithm"]
    assert choice(SIZE)["measured"] == chosen.measured
    assert all(
        theirs == backend_of().fabric_json for theirs in on_all_ranks(backend_of().fabric_json)
    )
    # Sizes that are far from the measured one are as before.
    assert choice(64) == small_before
    check_sums()


@pytest.mark.ranks(3, fresh=True)
def test_the_slowest_rank_counts(shared: str) -> None:
    predicted = choice(SIZE)["algorithm"]
    with pytest.MonkeyPatch.context() as monkeypatch, own_catalogue(shared):
        if dist.get_rank() == 2:
            slow_down(monkeypatch, {predicted}, 1.0)
        # So many that the slow one is measured to the end, not left out after a first look.
        results = q7x2.tune(sizes=[SIZE], **QUICK | {"candidates": 20})
    loser = next(each for each in results if each.algorithm == predicted)
    assert loser.measured >= 1
    assert not loser.chosen
    assert choice(SIZE)["algorithm"] != predicted
    check_sums()


@pytest.mark.ranks(4, fresh=True)
def test_the_trials_run_as_forced(shared: str) -> None:
    """Trials with the slices and windows of the candidates compute what is asked."""
    extension = load()
    candidates = extension.explain("all_reduce", SIZE, backend_of().fabric_json)
    for each in candidates:
        time = {key: each[key] for key in ("algorithm", "slice_bytes", "window", "seconds")}
        time |= {"collective": "all_reduce", "ranks": 4, "bytes": SIZE}
        backend_of().set_fabric(
            json.dumps(json.loads(backend_of().fabric_json) | {"tuned": [time]})
        )
        assert choice(SIZE)["algorithm"] == each["algorithm"]
        check_sums()


@pytest.mark.ranks(3, fresh=True)
def test_every_collective_can_be_tuned(world_size: int, shared: str) -> None:
    with own_catalogue(shared):
        brief = QUICK | {"seconds": 0.005}
        results = q7x2.tune(collectives=COLLECTIVES, sizes=["4K", 5000], **brief)
    calls = [(each.collective, each.bytes) for each in results if each.chosen]
    assert calls == [(name, size) for name in COLLECTIVES for size in (4096, 8192)]
    check_sums()
    everybody = [torch.empty(1024) for _ in range(world_size)]
    dist.all_gather(everybody, integers(dist.get_rank(), 1024, torch.float32))
    for rank, other in enumerate(everybody):
        assert_bits(other, integers(rank, 1024, torch.float32), rank)


@pytest.mark.ranks(2, fresh=True)
def test_collectives_in_progress_keep_their_plans(shared: str) -> None:
    with own_catalogue(shared):
        tensor = integers(dist.get_rank(), 300_007, torch.int64)
        work = dist.all_reduce(tensor, async_op=True)
        q7x2.tune(sizes=[SIZE], **QUICK)
        work.wait()
    assert_bits(
        tensor, sum(integers(rank, 300_007, torch.int64) for rank in range(2)), "in progress"
    )


@pytest.mark.ranks(3, fresh=True)
def test_later_groups_know_the_times(shared: str) -> None:
    with own_catalogue(shared) as catalogue:
        q7x2.tune(sizes=[SIZE], **QUICK)
        tuned = choice(SIZE)
        later = dist.new_group()
        assert choice(SIZE, later) == tuned
        check_sums(later)
        dist.destroy_process_group(later)
        # A subgroup's times stand beside those of all.
        pair = dist.new_group([0, 1])
        if dist.get_rank() < 2:
            assert q7x2.tune(pair, sizes=[SIZE], **QUICK)
        else:
            with pytest.warns(UserWarning, match="not in the group"):
                assert q7x2.tune(pair) == []
        dist.barrier()
        (entry,) = catalogue.glob("fabric-*.json")
        times = fabric_files.read(entry)["tuned"]
        assert {time["ranks"] for time in times} == {2, 3}
        assert choice(SIZE, dist.new_group()) == tuned


SCRIPT = """
    import json, sys
    import q7x2
    import torch.distributed as dist
    from q7x2._core.extension import load

    dist.init_process_group("q7x2")
    if sys.argv[1] == "tune":
        q7x2.tune(sizes=[65536], candidates=3, seconds=0.02)
    tensor = __import__("torch").ones(16384)
    dist.all_reduce(tensor)
    assert tensor.eq(2).all()
    backend = dist.group.WORLD._get_backend(tensor.device)
    best = load().explain("all_reduce", 65536, backend.fabric_json)[0]
    print(json.dumps([best["algorithm"], best["measured"]]))
    dist.destroy_process_group()
"""


def test_later_jobs_know_the_times(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    chosen = [
        [
            json.loads(result.stdout)
            for result in harness.run_script(SCRIPT, 2, tmp_path, env=env, args=[action])
        ]
        for action in ("tune", "look")
    ]
    (algorithm, measured), *others = chosen[0] + chosen[1]
    assert measured is not None
    assert all(other == [algorithm, measured] for other in others)


@pytest.mark.ranks(2, fresh=True)
def test_the_file_of_a_user_is_left_alone(shared: str) -> None:
    file, out = Path(shared) / "mine.json", Path(shared) / "tuned.json"
    if dist.get_rank() == 0:
        file.write_text(backend_of().fabric_json)
        os.environ["Q7X2_FABRIC"] = str(file)
    dist.barrier()
    before = file.read_text()
    with own_catalogue(shared):
        group = dist.new_group()
        q7x2.tune(group, sizes=[SIZE], **QUICK)
        assert file.read_text() == before
        q7x2.tune(group, sizes=[SIZE], out=out, **QUICK)
        assert file.read_text() == before
        dist.barrier()
        assert out.read_text() == backend_of(group).fabric_json
        with pytest.raises(RuntimeError, match="cannot be written to /nonexistent/"):
            q7x2.tune(group, sizes=[SIZE], out="/nonexistent/tuned.json", **QUICK)


@pytest.mark.ranks(2, fresh=True)
def test_a_catalogue_that_cannot_be_written_is_a_warning(shared: str) -> None:
    (Path(shared) / "q7x2").touch()
    with own_catalogue(shared):
        if dist.get_rank() == 0:
            with pytest.warns(UserWarning, match="not in the catalogue: cannot write"):
                results = q7x2.tune(sizes=[SIZE], **QUICK)
        else:
            results = q7x2.tune(sizes=[SIZE], **QUICK)
    assert choice(SIZE)["measured"] == results[0].measured


@pytest.mark.parametrize(
    ("arguments", "error", "expected"),
    [
        ({"collectives": ["barrier"]}, ValueError, "collectives: expected some of all_reduce"),
        ({"collectives": [[]]}, ValueError, "collectives: expected some of all_reduce"),
        ({"collectives": "all_reduce"}, TypeError, "collectives: expected a sequence"),
        ({"sizes": "16M"}, TypeError, "sizes: expected a sequence"),
        ({"sizes": 5}, TypeError, "sizes: expected a sequence"),
        ({"sizes": ["16X"]}, ValueError, "sizes: expected a number of bytes, such as 4096"),
        ({"sizes": [0]}, ValueError, "sizes: expected 1 byte to 1024G, got 0"),
        ({"sizes": ["999999999999999999G"]}, ValueError, "sizes: expected at most"),
        ({"sizes": [1.5]}, TypeError, "sizes: expected a whole number, got 1.5"),
        ({"candidates": 0}, ValueError, "candidates: expected at least 1, got 0"),
        ({"candidates": True}, TypeError, "candidates: expected a whole number"),
        ({"seconds": float("nan")}, ValueError, "seconds: expected more than 0, got nan"),
        ({"seconds": "1"}, TypeError, "seconds: expected a number"),
        ({"out": 7}, TypeError, "out: expected a path, got 7"),
    ],
)
@pytest.mark.ranks(2)
def test_wrong_arguments_on_one_rank_are_an_error_on_all(
    arguments: dict[str, Any], error: type[Exception], expected: str
) -> None:
    if dist.get_rank() == 1:
        with pytest.raises(error, match=expected):
            q7x2.tune(**arguments)
    else:
        with pytest.raises(
            ValueError, match=f"rank 1 of the group cannot make its request .*{expected}"
        ):
            q7x2.tune(sizes=[4])


@pytest.mark.ranks(3)
def test_ranks_that_disagree_are_told_so() -> None:
    mine = ([SIZE], [SIZE], [SIZE, 4])[dist.get_rank()]
    with pytest.raises(
        ValueError, match=r"rank 0 has sizes=\(65536,\) where rank 2 of the group has sizes="
    ):
        q7x2.tune(sizes=mine)


@pytest.mark.ranks(2, fresh=True)
def test_a_rank_without_memory_is_an_error_on_all() -> None:
    before = backend_of().fabric_json
    with pytest.MonkeyPatch.context() as monkeypatch:
        if dist.get_rank() == 1:
            monkeypatch.setattr(plan_tuning, "make_call", refuse)
        with pytest.raises(RuntimeError, match="no memory for this"):
            q7x2.tune(sizes=[SIZE], **QUICK)
    assert backend_of().fabric_json == before
    check_sums()


def refuse(*_: Any) -> None:
    raise RuntimeError("no memory for this")


def test_tune_needs_a_group() -> None:
    with pytest.raises(ValueError, match="call init_process_group first"):
        q7x2.tune()


def test_the_command(tmp_path: Path) -> None:
    source = "import sys; from q7x2 import cli; sys.exit(cli.main(sys.argv[1:]))"
    out = tmp_path / "tuned.json"
    arguments = ["tune", "--op", "all_reduce", "broadcast", "--sizes", "4K", "--seconds", "0.02"]
    results = harness.run_script(
        source,
        2,
        tmp_path,
        env={"XDG_CACHE_HOME": str(tmp_path)},
        args=[*arguments, "--out", str(out)],
    )
    assert results[1].stdout == ""
    assert all(word in results[0].stdout for word in ("broadcast", "4 KiB", "measured"))
    times = fabric_files.read(out)["tuned"]
    assert {(time["collective"], time["bytes"]) for time in times} == {
        ("all_reduce", 4096),
        ("broadcast", 4096),
    }


def test_the_command_wants_torchrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert cli.main(["tune"]) == 1
    assert "torchrun" in capsys.readouterr().err
