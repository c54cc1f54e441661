"""``ShardedEmbedding``: the bits of one table in one process, whatever the ranks' batches."""

from __future__ import annotations

import functools
import warnings

import pytest
import q7x2
import torch
import torch.distributed as dist
import torch.nn.functional as F
from embedding_model import (
    DIM,
    OPTIMIZERS,
    PADDING,
    ROWS,
    Reference,
    batch,
    make,
    train_step,
    weights,
)
from q7x2.embedding.row_map import MOST_ROWS, RowMap
from q7x2.embedding.start import fill
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits

# --- the map -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 30, 37, 1000, 4096, 99991])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_every_row_has_one_owner(rows: int, ranks: int) -> None:
    maps = [RowMap(rows, ranks, rank) for rank in range(ranks)]
    owned = [each.owned_rows(torch.device("cpu")) for each in maps]
    assert sorted(torch.cat(owned).tolist()) == list(range(rows))
    positions = maps[0].positions(torch.arange(rows))
    assert torch.equal(maps[0].rows_at(positions), torch.arange(rows))
    counts = maps[0].counts(positions).tolist()
    assert counts == [len(each) for each in owned] == [each.end - each.begin for each in maps]


@pytest.mark.parametrize("ranks", [2, 4, 7])
@pytest.mark.parametrize("rows", [1000, 2**20, 10**6])
def test_neighbours_are_shared_out_evenly(rows: int, ranks: int) -> None:
    row_map = RowMap(rows, ranks, 0)
    for begin in (0, 1, 500):
        for length in (ranks * 8, 256):
            counts = row_map.counts(row_map.positions(torch.arange(begin, begin + length)))
            assert (counts - length / ranks).abs().max() <= 3


def test_the_last_rows_of_the_largest_table() -> None:
    row_map = RowMap(MOST_ROWS, 1000, 999)
    rows = torch.tensor([0, 1, MOST_ROWS // 2, MOST_ROWS - 1], dtype=torch.int32)
    positions = row_map.positions(rows)
    assert positions.tolist() == [int(r) * row_map.multiplier % MOST_ROWS for r in rows]
    assert torch.equal(row_map.rows_at(positions), rows.long())


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_initial_rows_do_not_depend_on_the_number_of_ranks(ranks: int) -> None:
    rows = 10_000  # of three blocks

    def table(ranks: int) -> torch.Tensor:
        parts = []
        for rank in range(ranks):
            row_map = RowMap(rows, ranks, rank)
            parts.append(torch.empty(row_map.end - row_map.begin, 2))
            fill(parts[-1], row_map, nn.init.normal_, 3, 9_999)
        return torch.cat(parts)

    alone = table(1)
    assert_bits(table(ranks), alone)
    assert torch.equal(alone[9_999], torch.zeros(2))
    assert abs(float(alone.std()) - 1) < 0.05


# --- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        ("sgd", torch.float32),
        ("adagrad", torch.float32),
        ("adam", torch.float32),
        ("adam", torch.bfloat16),
        ("sgd", torch.float64),
    ],
)
@pytest.mark.ranks(1, 3)
def test_the_bits_of_one_table(world_size: int, optimizer: str, dtype: torch.dtype) -> None:
    embedding = make(optimizer, dtype=dtype)
    reference = Reference(embedding.table(), optimizer, world_size)
    for step in range(6):
        out = train_step(embedding, step, dtype)
        assert_bits(out, reference.rows()[batch(step, dist.get_rank())])
        reference.train_step(step)
    assert_bits(embedding.table(), reference.rows())
    assert embedding.stats.steps == 6
    assert not embedding.table()[PADDING].any()


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.ranks(3)
def test_one_process_with_the_whole_batch_learns_the_same(world_size: int, optimizer: str) -> None:
    embedding = make(optimizer)
    alone = nn.Embedding(ROWS, DIM, padding_idx=PADDING, sparse=True, _weight=embedding.table())
    update = OPTIMIZERS[optimizer]([alone.weight])
    for step in range(4):
        train_step(embedding, step, torch.float32)
        batches = [batch(step, rank) for rank in range(world_size)]
        factors = [weights(step, r, len(b), torch.float32) for r, b in enumerate(batches)]
        loss = (alone(torch.cat(batches)) * torch.cat(factors)).sum() / world_size
        update.zero_grad()
        loss.backward()
        update.step()
    torch.testing.assert_close(embedding.table(), alone.weight.detach())


@pytest.mark.ranks(2)
def test_indices_of_any_shape() -> None:
    embedding = make("sgd")
    expected = embedding.table()
    for dtype in (torch.int32, torch.int64):
        for shape in ((), (1,), (0,), (2, 3), (2, 0, 3), (2, 1, 2)):
            indices = torch.arange(5, 5 + torch.Size(shape).numel(), dtype=dtype).reshape(shape)
            out = embedding(indices)
            assert out.shape == (*shape, DIM)
            assert_bits(out.detach(), F.embedding(indices, expected))
            out.sum().backward()
            embedding.step()
            expected[indices.flatten().long()] -= 0.5
    assert_bits(embedding.table(), expected)


@pytest.mark.ranks(2)
def test_gradients_of_several_backwards_are_one_step() -> None:
    me = dist.get_rank()
    embedding = make("sgd", average=False)
    expected = embedding.table()
    for indices, factor in (([1, 2, 2], 1.0), ([2, 7], 2.0)):
        (embedding(torch.tensor(indices)).sum() * factor).backward()
    embedding(torch.tensor([9]))  # no backward: it is not touched
    if me == 0:
        embedding(torch.tensor([11])).sum().backward()
    else:
        embedding(torch.tensor([11])).sum()
    embedding.step()
    for row, gradient in ((1, 2.0), (2, 8.0), (7, 4.0), (11, 1.0)):
        expected[row] -= 0.5 * gradient
    assert_bits(embedding.table(), expected)
    assert embedding.stats.pushed_rows == 4 - me


@pytest.mark.ranks(2)
def test_without_an_optimizer_or_a_gradient_nothing_changes() -> None:
    frozen = q7x2.embedding.ShardedEmbedding(10, 3, optimizer=None)
    assert not frozen(torch.tensor([1])).requires_grad
    with pytest.raises(RuntimeError, match="no optimizer"):
        frozen.step()
    embedding = make("adam")
    table = embedding.table()
    with torch.no_grad():
        assert not embedding(torch.tensor([1])).requires_grad
    embedding.step()
    embedding(torch.tensor([1, 2])).sum().backward()
    embedding.zero_grad()
    embedding.step()
    embedding(torch.tensor([1, 2])).sum().backward()
    embedding.push()
    embedding.zero_grad()
    embedding.step()
    assert_bits(embedding.table(), table)


@pytest.mark.ranks(2)
def test_a_schedule_changes_the_rate_and_a_cast_the_rows() -> None:
    embedding = make("sgd")
    schedule = torch.optim.lr_scheduler.StepLR(embedding.optimizer, 1, gamma=0.5)
    expected = embedding.table()
    warnings.simplefilter("error")
    for rate in (0.5, 0.25):
        embedding(torch.tensor([3])).sum().backward()
        embedding.step()
        schedule.step()  # must not warn that the optimizer has made no step
        expected[3] -= rate
    warnings.resetwarnings()
    assert_bits(embedding.table(), expected)
    embedding.double()
    embedding(torch.tensor([3])).sum().backward()
    embedding.step()
    expected = expected.double()
    expected[3] -= 0.125
    assert_bits(embedding.table(), expected)


# --- staleness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [1, 3])
@pytest.mark.ranks(3)
def test_a_push_is_applied_exactly_when_its_time_is_up(world_size: int, staleness: int) -> None:
    embedding = make("adagrad", staleness=staleness)
    reference = Reference(embedding.table(), "adagrad", world_size)
    delayed: list[torch.Tensor] = []
    for step in range(8):
        out = train_step(embedding, step, torch.float32)
        assert_bits(out, reference.rows()[batch(step, dist.get_rank())])
        delayed.append(reference.gradient(step))
        if len(delayed) > staleness:
            reference.apply(delayed.pop(0))
        assert embedding.stats.in_flight == len(delayed) <= staleness
    assert embedding.stats.largest_staleness == staleness
    for call in (embedding.state_dict, embedding.table):
        with pytest.raises(RuntimeError, match=f"{staleness} pushes are in flight"):
            call()
    with pytest.raises(ValueError, match="staleness=0"):
        embedding.grad_norm()
    embedding.flush()
    for gradient in delayed:
        reference.apply(gradient)
    assert_bits(embedding.table(), reference.rows())
    assert embedding.stats.steps == 8
    assert embedding.stats.in_flight == 0


@pytest.mark.ranks(2)
def test_a_training_ends_with_all_pushes_applied(world_size: int) -> None:
    with make("adagrad", staleness=2) as embedding:
        reference = Reference(embedding.table(), "adagrad", world_size)
        for step in range(3):
            train_step(embedding, step, torch.float32)
            reference.train_step(step)
        assert embedding.stats.in_flight == 2
    assert embedding.stats.in_flight == 0
    assert_bits(embedding.table(), reference.rows())
    embedding.push()
    with pytest.raises(RuntimeError, match="has been pushed and not applied"):
        embedding.finish()
    embedding.step()
    embedding.finish()


# --- beside dense parameters ---------------------------------------------------------------------


class Model(nn.Module):
    """A small click model: bags of ids to one logit."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        torch.manual_seed(5)
        self.dense = nn.Sequential(nn.Linear(DIM, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.dense(self.embedding(indices).mean(1)).squeeze(1)


def samples(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    indices = (torch.rand(6, 3, generator=generator) ** 2 * ROWS).long()
    return indices, torch.rand(6, generator=generator)


@pytest.mark.parametrize("max_norm", [0.05, 1e6])
@pytest.mark.ranks(2)
def test_with_ddp_clipping_and_accumulation(world_size: int, max_norm: float) -> None:
    embedding = make("adagrad")
    ddp = DDP(Model(embedding))
    assert all("embedding" not in name for name, _ in ddp.named_parameters())
    dense = torch.optim.SGD(ddp.parameters(), lr=0.1)
    alone = Model(nn.Embedding(ROWS, DIM, padding_idx=PADDING, _weight=embedding.table()))
    optimizers = [
        torch.optim.SGD(alone.dense.parameters(), lr=0.1),
        torch.optim.Adagrad(alone.embedding.parameters(), lr=0.1, lr_decay=0.01),
    ]
    for step in range(4):
        for model in (ddp, alone):
            model.zero_grad()
        for micro in (2 * step, 2 * step + 1):
            indices, target = samples(micro, dist.get_rank())
            ddp.require_backward_grad_sync = micro % 2 == 1  # as no_sync() does
            loss = F.mse_loss(ddp(indices), target)
            loss.backward()
            for rank in range(world_size):
                indices, target = samples(micro, rank)
                (F.mse_loss(alone(indices), target) / world_size).backward()
        norm = q7x2.embedding.clip_grad_norm_(ddp, max_norm)
        expected = nn.utils.clip_grad_norm_(alone.parameters(), max_norm)
        torch.testing.assert_close(norm, expected)
        embedding.step()
        dense.step()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(embedding.table(), alone.embedding.weight.detach())
    for ours, theirs in zip(ddp.module.dense.parameters(), alone.dense.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.ranks(3)
def test_groups_have_tables_of_their_own() -> None:
    me = dist.get_rank()
    group = dist.new_group([0, 2])
    if me != 1:
        embedding = make("sgd", group=group)
        reference = Reference(embedding.table(), "sgd", 2)
        train_step(embedding, 1, torch.float32, group)
        reference.train_step(1)
        assert_bits(embedding.table(), reference.rows())
    dist.barrier()


@pytest.mark.ranks(2)
def test_sent_bytes_are_those_of_the_rows_of_others() -> None:
    embedding = q7x2.embedding.ShardedEmbedding(
        8, 4, optimizer=functools.partial(torch.optim.SGD, lr=1.0)
    )  # rank 0 owns the positions 0 to 3
    owners = RowMap(8, 2, dist.get_rank()).positions(torch.arange(8)) // 4
    others = torch.nonzero(owners != dist.get_rank()).flatten()
    embedding(others).sum().backward()
    embedding.step()
    counts, index, row = 24, 4, 16
    # Four indices and four rows each way in forward, and four of both in the push.
    assert embedding.stats.sent_bytes == 2 * counts + 4 * (index + row) + 4 * (index + row)
    assert embedding.stats.pulled_rows == embedding.stats.pushed_rows == 4
