"""Groups: subgroups, names, splits, merges."""

from __future__ import annotations

import inspect
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from q7x2._core.groups import group_like
from values import assert_bits, check_sum, f32, integers

CPU = torch.device("cpu")


# --- new_group ---------------------------------------------------------------------------------


@pytest.mark.ranks(4)
def test_overlapping_subgroups(world_size: int) -> None:
    me = dist.get_rank()
    sets = [[0, 1], [1, 2], [2, 3], [3, 0], [0, 1, 2], [1, 3], [0, 1, 2, 3]]
    groups = [dist.new_group(ranks) for ranks in sets]
    for turn in range(3):
        for i, (ranks, group) in enumerate(zip(sets, groups, strict=True)):
            if me in ranks:
                check_sum(group, ranks, salt=10 * turn + i)
    check_sum(None, list(range(world_size)), salt=99)


@pytest.mark.ranks(4)
def test_overlapping_subgroups_at_once() -> None:
    """Works of several groups in flight together, started in another order on each rank."""
    me = dist.get_rank()
    sets = [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]]
    groups = [dist.new_group(ranks) for ranks in sets]
    mine = [i for i, ranks in enumerate(sets) if me in ranks]
    if me % 2:
        mine.reverse()
    works = {}
    for i in mine:
        tensor = integers(me, 3000, f32, i)
        works[i] = (dist.all_reduce(tensor, group=groups[i], async_op=True), tensor)
    for i, (work, tensor) in works.items():
        work.wait()
        assert_bits(tensor, sum(integers(r, 3000, f32, i) for r in sets[i]), i)


@pytest.mark.ranks(3)
def test_rank_outside_the_group() -> None:
    me = dist.get_rank()
    group = dist.new_group([0, 2])
    if me == 1:
        assert group is dist.GroupMember.NON_GROUP_MEMBER
        assert dist.get_rank(group) == -1
        assert dist.get_world_size(group) == -1
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        assert_bits(tensor, torch.ones(3))
        with pytest.raises(ValueError, match=r"Invalid process group|not a part|not part"):
            dist.get_backend(group)
    else:
        assert dist.get_rank(group) == me // 2
        assert dist.get_world_size(group) == 2
        check_sum(group, [0, 2])


@pytest.mark.ranks(3)
def test_groups_that_some_ranks_make_within_leave_later_names_alone() -> None:
    pair = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        for _ in range(2):
            check_sum(group_like(pair, torch.device("cpu")), [0, 2])
    check_sum(dist.new_group(), [0, 1, 2])


@pytest.mark.ranks(4)
def test_ranks_of_a_subgroup_are_renumbered() -> None:
    """Roots, sources and destinations are global ranks, or group ranks by their own argument."""
    me = dist.get_rank()
    group = dist.new_group([1, 3])
    if me in (1, 3):
        tensor = torch.full((5,), float(me))
        dist.broadcast(tensor, src=3, group=group)
        assert_bits(tensor, torch.full((5,), 3.0))
        tensor = torch.full((5,), float(me))
        dist.broadcast(tensor, group=group, group_src=0)
        assert_bits(tensor, torch.full((5,), 1.0))
        received = torch.zeros(2)
        if me == 1:
            dist.send(torch.full((2,), 8.0), 3, group=group)
        else:
            assert dist.recv(received, group=group) == 1
            assert_bits(received, torch.full((2,), 8.0))
        gathered = [torch.zeros(1), torch.zeros(1)] if me == 3 else None
        dist.gather(torch.full((1,), float(me)), gathered, dst=3, group=group)
        if gathered:
            assert [float(t) for t in gathered] == [1.0, 3.0]
        with pytest.raises(ValueError, match=r"(?i)global rank 0 is not part"):
            dist.broadcast(tensor, src=0, group=group)


@pytest.mark.skipif(
    "sort_ranks" not in inspect.signature(dist.new_group).parameters,
    reason="new_group of this torch always sorts",
)
@pytest.mark.ranks(4)
def test_new_group_does_not_sort_when_told_so() -> None:
    group = dist.new_group([2, 0, 3, 1], sort_ranks=False)
    assert dist.get_process_group_ranks(group) == [2, 0, 3, 1]
    assert dist.get_rank(group) == [2, 0, 3, 1].index(dist.get_rank())
    mine = torch.full((1,), float(dist.get_rank()))
    gathered = torch.zeros(4)
    dist.all_gather_into_tensor(gathered, mine, group=group)
    assert gathered.tolist() == [2.0, 0.0, 3.0, 1.0]


@pytest.mark.ranks(3)
def test_group_of_one() -> None:
    me = dist.get_rank()
    groups = [dist.new_group([r]) for r in range(3)]
    tensor = torch.full((4,), float(me))
    dist.all_reduce(tensor, group=groups[me])
    dist.barrier(group=groups[me])
    gathered = torch.zeros(4)
    dist.all_gather_into_tensor(gathered, tensor, group=groups[me])
    assert_bits(gathered, tensor)
    output = torch.zeros(4)
    dist.all_to_all_single(output, tensor, group=groups[me])
    dist.reduce_scatter_tensor(output, tensor, group=groups[me])
    assert_bits(output, tensor)


@pytest.mark.ranks(2, 4)
def test_many_groups_share_a_process(world_size: int) -> None:
    everybody = list(range(world_size))
    groups = [dist.new_group() for _ in range(30)]
    for i, group in enumerate(groups):
        check_sum(group, everybody, salt=i, size=64)
    for group in groups[::2]:
        dist.destroy_process_group(group)
    for i, group in enumerate(groups[1::2]):
        check_sum(group, everybody, salt=i, size=64)
    for group in groups[1::2]:
        dist.destroy_process_group(group)
    check_sum(None, everybody)


@pytest.mark.ranks(2, fresh=True)
def test_local_synchronization() -> None:
    """Only the members call new_group; from torch 2.15 on, only they count it in later names."""
    if dist.get_rank() == 0:
        group = dist.new_group([0], use_local_synchronization=True)
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert_bits(tensor, torch.ones(2))
    dist.barrier()


@pytest.mark.ranks(4)
def test_subgroups_by_enumeration() -> None:
    me = dist.get_rank()
    group, _ = dist.new_subgroups(2)
    pair = [0, 1] if me < 2 else [2, 3]
    check_sum(group, pair)
    group, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    check_sum(group, [0, 2] if me % 2 == 0 else [1, 3])


@pytest.mark.ranks(2)
def test_names_and_descriptions(backend: str) -> None:
    group = dist.new_group(group_desc="gradients")
    assert group.group_desc == "gradients"
    assert group.group_name != dist.group.WORLD.group_name
    assert dist.get_backend(group) == backend
    assert dist.group.WORLD.group_desc == "default_pg"
    assert group.size() == 2
    assert group.rank() == dist.get_rank()


@pytest.mark.beyond("gloo", "its group carries torch's name for it")
@pytest.mark.ranks(2)
def test_backend_object(backend: str) -> None:
    of_cpu = dist.group.WORLD._get_backend(CPU)
    assert of_cpu.name() == backend
    assert of_cpu._get_backend_name() == backend
    assert of_cpu.rank() == dist.get_rank()
    assert of_cpu.size() == 2
    assert of_cpu.supports_splitting
    assert of_cpu.supports_coalescing
    assert of_cpu.options._timeout == timedelta(seconds=30)
    assert of_cpu.options.backend == backend


@pytest.mark.ranks(2)
def test_sequence_numbers(backend: str) -> None:
    """By the backend's object: the group's own functions know the built-in backends only."""
    group = dist.new_group()
    numbered = group if backend == "gloo" else group._get_backend(CPU)
    numbered._set_sequence_number_for_group()
    before = numbered._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=group)
    after = numbered._get_sequence_number_for_group()
    assert after == before + 3
    numbers: list = [None] * 2
    dist.all_gather_object(numbers, after)
    assert numbers[0] == numbers[1]


# --- split and merge ---------------------------------------------------------------------------


@pytest.mark.beyond("gloo", "its split needs a store of its own kind")
@pytest.mark.ranks(4)
def test_split(world_size: int) -> None:
    me = dist.get_rank()
    world = dist.group.WORLD
    backend = world._get_backend(CPU)
    ranks = [0, 1] if me < 2 else [2, 3]
    half = world.split_group(
        ranks, timedelta(seconds=20), backend.options, f"half{me // 2}", "half"
    )
    assert half.size() == 2
    assert half.rank() == me % 2
    tensor = torch.full((100,), float(me))
    half.allreduce([tensor]).wait()
    assert_bits(tensor, torch.full((100,), float(sum(ranks))))
    check_sum(None, list(range(world_size)))


@pytest.mark.beyond("gloo", "its split needs a store of its own kind")
@pytest.mark.ranks(3)
def test_split_that_leaves_ranks_out() -> None:
    me = dist.get_rank()
    world = dist.group.WORLD
    options = world._get_backend(CPU).options
    part = world.split_group([0, 2], None, options, "part", "part")
    if me == 1:
        assert part is None
    else:
        tensor = torch.full((10,), float(me))
        part.allreduce([tensor]).wait()
        assert_bits(tensor, torch.full((10,), 2.0))
    dist.barrier()


@pytest.mark.beyond("gloo", "its split needs a store of its own kind")
@pytest.mark.ranks(4)
def test_split_of_a_split() -> None:
    me = dist.get_rank()
    world = dist.group.WORLD
    options = world._get_backend(CPU).options
    three = world.split_group([0, 1, 2], None, options, "three", "three")
    if me < 3:
        two = three.split_group([1, 2], None, options, "two", "two")
        if me in (1, 2):
            tensor = torch.full((10,), float(me))
            two.allreduce([tensor]).wait()
            assert_bits(tensor, torch.full((10,), 3.0))
    dist.barrier()


@pytest.mark.beyond("gloo", "its merge needs a store of its own kind")
@pytest.mark.ranks(4)
def test_merge(shared: str) -> None:
    """Two halves, each a group of its own, become one group of four through a store they share."""
    me = dist.get_rank()
    world = dist.group.WORLD
    options = world._get_backend(CPU).options
    ranks = [0, 1] if me < 2 else [2, 3]
    half = world.split_group(ranks, None, options, f"merge half {me // 2}", "half")
    store = dist.FileStore(f"{shared}/merged", 4)
    whole = half.merge_remote_group(store, 4, timedelta(seconds=20), "whole", "whole")
    assert whole.size() == 4
    tensor = torch.full((10,), 1.0 + me)
    whole.allreduce([tensor]).wait()
    assert_bits(tensor, torch.full((10,), 10.0))
