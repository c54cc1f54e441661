"""The state of ``ShardedEmbedding``: distributed checkpoints, resharding, and what is refused."""

from __future__ import annotations

import pytest
import q7x2
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from embedding_model import DIM, OPTIMIZERS, ROWS, Reference, make, train_step
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import DTensor
from values import assert_bits


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.ranks(3)
def test_saved_on_2_ranks_loaded_on_3_and_back(optimizer: str, shared: str) -> None:
    me = dist.get_rank()
    two = dist.new_group([0, 1])
    torch.manual_seed(1)
    first = make(optimizer, group=two) if me < 2 else None
    if first is not None:
        reference = Reference(first.table(), optimizer, 2)
        for step in range(3):
            train_step(first, step, torch.float32)
            reference.train_step(step)
        first.optimizer.param_groups[0]["lr"] *= 0.5
        dcp.save({"model": nn.ModuleList([first])}, checkpoint_id=shared, process_group=two)
    dist.barrier()
    torch.manual_seed(2)
    second = make(optimizer)
    dcp.load({"model": nn.ModuleList([second])}, checkpoint_id=shared)
    table = first.table() if first is not None else torch.empty(ROWS, DIM)
    dist.broadcast(table, 0)
    assert_bits(second.table(), table)

    # The optimizer's state came along: the next steps are those of a reference that has it.
    alone = Reference(table, optimizer, 3)
    if first is not None:
        alone.optimizer.state[alone.table] = reference.optimizer.state[reference.table]
        alone.optimizer.param_groups[0]["lr"] *= 0.5
    for step in range(3, 5):
        train_step(second, step, torch.float32)
        if first is not None:
            alone.train_step(step)
    table = second.table()
    if first is not None:
        assert_bits(table, alone.rows())

    dcp.save({"model": nn.ModuleList([second])}, checkpoint_id=f"{shared}/back")
    if first is not None:
        state = {"model": nn.ModuleList([first])}
        dcp.load(state, checkpoint_id=f"{shared}/back", process_group=two)
        assert_bits(first.table(), table)
        alone.ranks = 2
        train_step(first, 5, torch.float32)
        alone.train_step(5)
        assert_bits(first.table(), alone.rows())
    dist.barrier()


@pytest.mark.ranks(3)
def test_ranks_without_rows_save_and_load(shared: str) -> None:
    def tiny() -> q7x2.embedding.ShardedEmbedding:
        return q7x2.embedding.ShardedEmbedding(2, DIM, optimizer=OPTIMIZERS["adam"])

    embedding = tiny()
    embedding(torch.tensor([0, 1])).sum().backward()
    embedding.step()
    dcp.save({"model": embedding}, checkpoint_id=shared)
    loaded = tiny()
    dcp.load({"model": loaded}, checkpoint_id=shared)
    assert_bits(loaded.table(), embedding.table())
    for each in (embedding, loaded):
        each(torch.tensor([1])).sum().backward()
        each.step()
    assert_bits(loaded.table(), embedding.table())


@pytest.mark.ranks(2)
def test_a_state_of_whole_tensors_and_a_table_by_row() -> None:
    embedding = make("adagrad")
    train_step(embedding, 1, torch.float32)
    whole = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
        for name, value in embedding.state_dict().items()
    }
    other = make("adagrad")
    other.load_state_dict(whole)
    for each in (embedding, other):
        train_step(each, 2, torch.float32)
    assert_bits(other.table(), embedding.table())
    table = torch.arange(ROWS * DIM).reshape(ROWS, DIM).float()
    other.load_table(table)
    assert_bits(other.table(), table)
    with pytest.raises(ValueError, match=r"expected a table of shape \(37, 5\), got \(37, 4\)"):
        other.load_table(table[:, :4])


@pytest.mark.ranks(2)
def test_states_that_do_not_fit_change_nothing() -> None:
    embedding = make("adagrad")
    state = embedding.state_dict()
    table = embedding.table()
    other = make("adagrad")
    before = other.table()
    larger = q7x2.embedding.ShardedEmbedding(
        ROWS + 1, DIM, optimizer=OPTIMIZERS["adagrad"]
    ).state_dict()
    for changed, match in (
        ({"rows": larger["rows"]}, r"rows: expected shape \(37, 5\), got \(38, 5\)"),
        ({"optimizer_sum": torch.zeros(ROWS, 2)}, r"optimizer_sum: expected shape \(37, 5\)"),
        ({"row_multiplier": torch.tensor(1)}, "row_multiplier: expected .* got 1: the rows are"),
    ):
        with pytest.raises(RuntimeError, match=match):
            other.load_state_dict({**state, **changed})
    with pytest.raises(RuntimeError, match=r"Missing key.*optimizer_exp_avg"):
        make("adam").load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"(?s)Missing key.*rows.*Unexpected key.*weight"):
        other.load_state_dict(nn.Embedding(ROWS, DIM).state_dict())
    assert_bits(other.table(), before)
    other(torch.tensor([1])).sum().backward()
    other.load_state_dict(state)  # drops the gradient
    other.step()
    assert_bits(other.table(), table)


@pytest.mark.ranks(2)
def test_the_rows_of_a_part_of_a_model_have_its_name() -> None:
    model = nn.Sequential(make("sgd"), nn.Linear(DIM, 1))
    assert set(model.state_dict()) == {
        "0.rows",
        "0.row_multiplier",
        "0.optimizer_lr",
        "0.optimizer_step",
        "1.weight",
        "1.bias",
    }
    model.load_state_dict(model.state_dict())


@pytest.mark.ranks(2)
def test_the_state_functions_of_torch_take_it() -> None:
    one, other = (nn.Sequential(make("adagrad"), nn.Linear(DIM, 1)) for _ in range(2))
    train_step(one[0], 1, torch.float32)
    for full in (False, True):
        options = StateDictOptions(full_state_dict=full)
        state = get_model_state_dict(one, options=options)
        assert isinstance(state["0.optimizer_sum"], DTensor) != full
        set_model_state_dict(other, state, options=options)
        assert_bits(other[0].table(), one[0].table())
        for each in (one, other):
            train_step(each[0], 2, torch.float32)
        assert_bits(other[0].table(), one[0].table())
