"""``ShardedEmbedding``: mistakes raise on all ranks at once; a dead owner leaves whole steps."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from embedding_model import DIM, OPTIMIZERS, PADDING, ROWS, Reference, make, train_step
from q7x2.embedding.exchange import Counts, Push
from q7x2.embedding.row_map import RowMap
from torch.distributed.tensor import DTensor
from values import assert_bits

STEPS = 8
SAVED = 3  # steps before the checkpoint


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.ranks(3)
def test_a_bad_batch_of_one_rank_raises_on_all_and_all_go_on() -> None:
    me = dist.get_rank()
    embedding = make("sgd")
    table = embedding.table()
    bad: Any
    for bad, error, match in (
        (torch.tensor([1, ROWS]), IndexError, f"rank 1 of the group gave .*the index {ROWS}; .*36"),
        (torch.tensor([[-1]]), IndexError, "rank 1 of the group gave .*the index -1"),
        (torch.tensor([1.0]), TypeError, "rank 1 of the group gave .*a tensor of int32 or int64"),
        ([1], TypeError, "rank 1 of the group gave .*a tensor of int32 or int64"),
    ):
        with pytest.raises(error, match=match):
            embedding(bad if me == 1 else torch.tensor([2]))
    embedding(torch.tensor([2])).sum().backward()
    embedding.step()
    table[2] -= 0.5
    assert_bits(embedding.table(), table)


@pytest.mark.parametrize("row", [-1, 4, 2**31 - 1, -(2**31)])
def test_a_row_from_another_rank_that_an_owner_does_not_have(row: int) -> None:
    """The optimizer would write beside the rows: torch checks no index of a sparse gradient."""
    sent = torch.tensor([0, 3, 3, row], dtype=torch.int32)
    counts = Counts(mine=[0, 0, 0], theirs=[1, 0, 3])
    with pytest.raises(IndexError, match=f"rank 2 of the group sent the row {row} .*rows 0 to 3"):
        Push([], counts, sent, torch.ones(4, 2), step=0).sums(4)
    with pytest.raises(IndexError, match="rank 0"):
        Counts(mine=[1], theirs=[1]).check(sent[:1], 0)
    index, sums = Push([], counts, sent.clamp(0, 3), torch.ones(4, 2), step=0).sums(4)
    assert torch.zeros(4, 2).index_add(0, index, sums).sum() == 8


@pytest.mark.ranks(2)
def test_wrong_arguments() -> None:
    sgd = OPTIMIZERS["sgd"]
    for arguments, error, match in (
        ({"rows": 0}, ValueError, "rows must be at least 1, got 0"),
        ({"rows": 2**31}, ValueError, "rows must be at most"),
        ({"dim": 0}, ValueError, "dim must be"),
        ({"padding_idx": 10}, ValueError, "padding_idx must be at most 9"),
        ({"staleness": -1}, ValueError, "staleness must"),
        ({"average": 1}, ValueError, "average must be True or False"),
        ({"dtype": torch.int32}, TypeError, "dtype must be a floating point dtype"),
        ({"optimizer": "sgd"}, TypeError, "optimizer must be a function"),
        ({"optimizer": torch.optim.Adam}, TypeError, "SGD, Adagrad or SparseAdam, got Adam"),
        (
            {"optimizer": functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9)},
            ValueError,
            "momentum must be 0, got 0.9",
        ),
        (
            {"optimizer": functools.partial(torch.optim.Adagrad, weight_decay=0.1)},
            ValueError,
            "weight_decay must be 0, got 0.1",
        ),
    ):
        with pytest.raises(error, match=match):
            q7x2.embedding.ShardedEmbedding(**{"rows": 10, "dim": 2, "optimizer": sgd, **arguments})


@pytest.mark.ranks(2)
def test_ranks_that_make_different_ones_raise_everywhere() -> None:
    with pytest.raises(ValueError, match=r"rank 0 has staleness=0 where rank 1 .* has .*=1"):
        make("sgd", staleness=dist.get_rank())


@pytest.mark.ranks(3)
def test_a_rank_with_wrong_arguments_is_named_by_the_others() -> None:
    rows = 0 if dist.get_rank() == 1 else ROWS
    match = "rows must be at least 1, got 0"
    if rows > 0:
        match = f"rank 1 of the group cannot make its ShardedEmbedding: ValueError: {match}"
    with pytest.raises(ValueError, match=match):
        q7x2.embedding.ShardedEmbedding(rows, DIM, optimizer=OPTIMIZERS["sgd"])
    make("sgd")


@pytest.mark.ranks(1)
def test_calls_out_of_order() -> None:
    embedding = make("sgd")
    out = embedding(torch.tensor([1]))
    embedding.push()
    with pytest.raises(RuntimeError, match=r"push\(\) was called twice"):
        embedding.push()
    with pytest.raises(RuntimeError, match=r"between push\(\) and step\(\)"):
        out.sum().backward()
    with pytest.raises(RuntimeError, match=r"pushed and not applied: call step\(\)"):
        embedding.state_dict()


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.ranks(1)
def test_an_optimizer_that_raises_half_way_changes_nothing(optimizer: str) -> None:
    """The step can be tried again, and gives what it gives the first time."""
    embedding, other = make(optimizer), make(optimizer)
    other.load_table(embedding.table())
    for each in (embedding, other):
        train_step(each, 1, torch.float32)

    def fail(*_: Any) -> None:
        raise MemoryError("of the test")

    hook = embedding.optimizer.register_step_post_hook(fail)
    with pytest.raises(MemoryError):
        train_step(embedding, 2, torch.float32)
    hook.remove()
    assert embedding.stats.steps == 1
    embedding.flush()
    train_step(other, 2, torch.float32)
    expected = state_of(other)
    for name, value in state_of(embedding).items():
        assert_bits(value, expected[name], name)
    assert embedding.stats.steps == 2


def state_of(embedding: q7x2.embedding.ShardedEmbedding) -> dict[str, torch.Tensor]:
    return {
        name: (value.to_local() if isinstance(value, DTensor) else value).clone()
        for name, value in embedding.state_dict().items()
    }


# --- an owner dies -------------------------------------------------------------------------------


def body_an_owner_dies(folder: str, where: str) -> None:
    me, victim = dist.get_rank(), 1
    embedding = make("adam", staleness=2 if where == "stale" else 0)
    reference = Reference(embedding.table(), "adam", 3)
    tables = [reference.rows().clone()]  # after each number of applied steps
    for step in range(SAVED):
        train_step(embedding, step, torch.float32)
    embedding.flush()
    dcp.save({"embedding": embedding}, checkpoint_id=folder)
    for step in range(STEPS + 1):
        reference.train_step(step)
        tables.append(reference.rows().clone())

    if me == victim:
        train_step(embedding, SAVED, torch.float32)
        if where == "push":  # the others wait for its gradients
            embedding(torch.tensor([2])).sum().backward()
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match=r"rank 1 \(pid \d+ on .*failed"):
        train_on(embedding)
    with pytest.raises(dist.DistBackendError, match=r"rank 1 \(pid"):
        embedding.step()
    if where != "stale":
        embedding.zero_grad()
        mine = RowMap(ROWS, 3, me).owned_rows(torch.device("cpu"))
        rows = embedding.state_dict()["rows"].to_local()
        assert_bits(rows, tables[embedding.stats.steps][mine])

    dist.shrink_group([victim])
    embedding = make("adam")
    dcp.load({"embedding": embedding}, checkpoint_id=folder)
    resumed = Reference(embedding.table(), "adam", 2)
    state = embedding.state_dict()
    resumed.optimizer.state[resumed.table] = {
        "step": int(state["optimizer_step"]),
        **{
            name: by_row(state[f"optimizer_{name}"].full_tensor())
            for name in ("exp_avg", "exp_avg_sq")
        },
    }
    if where != "stale":
        assert_bits(resumed.rows(), tables[SAVED])
    train_on(embedding)
    for step in range(SAVED, STEPS):
        resumed.train_step(step)
    assert_bits(embedding.table(), resumed.rows())
    assert embedding.table().shape == (ROWS, DIM)
    assert not embedding.table()[PADDING].any()
    dist.destroy_process_group()


def train_on(embedding: q7x2.embedding.ShardedEmbedding) -> None:
    for step in range(SAVED, STEPS):
        train_step(embedding, step, torch.float32)


def by_row(whole: torch.Tensor) -> torch.Tensor:
    return whole[RowMap(ROWS, 2, dist.get_rank()).positions(torch.arange(ROWS))]


@pytest.mark.beyond("gloo", "errors do not name the rank, and groups do not shrink")
@pytest.mark.parametrize("where", ["pull", "push", "stale"])
def test_an_owner_dies_and_training_resumes_from_the_checkpoint(
    new_pool, backend, shared: str, where: str
) -> None:
    pool = new_pool(3)
    group = harness.GroupSpec(backend, key="embedding", timeout=60)
    pool.start(body_an_owner_dies, group, 90, folder=shared, where=where)
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(outcome.describe() for outcome in outcomes)
    assert [outcome.kind for outcome in outcomes] == ["ok", "died", "ok"], text
