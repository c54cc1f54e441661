"""Forked children: every call of theirs is refused at once, and the parent notices nothing."""

from __future__ import annotations

import os

import harness
import pytest

pytestmark = pytest.mark.beyond("gloo", "hangs in the child")

OTHER_PAIR = pytest.mark.nightly("the quick level has each of the two in another pair")

# What the scripts share. A child that hangs shows where, and its exit code is 14 (SIGALRM).
PRELUDE = """
import faulthandler, gc, multiprocessing, os, signal, sys, threading
import torch, torch.distributed as dist, q7x2

def child_of(body):
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)
        signal.alarm(60)
        code = body() or 0
    except BaseException as error:
        import traceback
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)

def code_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def check_parent(group=None):
    for _ in range(3):
        tensor = torch.ones(100_000)
        dist.all_reduce(tensor, group=group)
        assert tensor[0] == dist.get_world_size(), tensor

def refused(call):
    try:
        call()
    except RuntimeError as error:
        assert "cannot be used in a forked child" in str(error), error
        assert isinstance(error, dist.DistBackendError), type(error)
    else:
        raise AssertionError("it was not refused")
"""


def run(source: str, tmp_path, backend: str, *args: str, exits: bool = False) -> None:
    """``exits``: a child ends as an interpreter does. At night, and then, rank 0 does, too."""
    is_quick = os.environ["Q7X2_TEST_WHOLE_END"] != "all"
    env = {"Q7X2_TEST_WHOLE_END": "of nobody"} if is_quick and not exits else {}
    results = harness.run_script(PRELUDE + source, 2, tmp_path, 120, env, args=[backend, *args])
    for result in results:
        assert "done" in result.stdout, result.describe()
        assert "Traceback" not in result.stderr, result.describe()


EVERY_CALL = """
dist.init_process_group(sys.argv[1])
me, size = dist.get_rank(), 2
world = dist.group.WORLD
cpu = torch.device("cpu")
backend = world._get_backend(cpu)
x, y = torch.ones(8), torch.ones(4)
over = dist.all_reduce(torch.ones(4), async_op=True)
over.wait()
late = dist.irecv(torch.zeros(4), 1 - me)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
attached = q7x2.attach(model, q7x2.Quantize("int8"))
model(torch.ones(2, 4)).sum().backward()

CALLS = {
    "all_reduce": lambda: dist.all_reduce(x),
    "all_reduce, async": lambda: dist.all_reduce(x, async_op=True),
    "all_reduce, not contiguous": lambda: dist.all_reduce(torch.ones(1 << 20, 2)[:, 0]),
    "all_reduce, sparse": lambda: dist.all_reduce(torch.eye(3).to_sparse()),
    "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([x, y]),
    "broadcast": lambda: dist.broadcast(x, 0),
    "reduce": lambda: dist.reduce(x, 0),
    "all_gather": lambda: dist.all_gather([x, x], x),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(x, y),
    "gather": lambda: dist.gather(y, [y, y] if me == 0 else None, 0),
    "scatter": lambda: dist.scatter(y, [y, y] if me == 0 else None, 0),
    "reduce_scatter": lambda: dist.reduce_scatter(y, [y, y]),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(y, x),
    "all_to_all": lambda: dist.all_to_all([y, y], [y, y]),
    "all_to_all_single": lambda: dist.all_to_all_single(x, x),
    "barrier": lambda: dist.barrier(),
    "send": lambda: dist.send(x, 1 - me),
    "recv": lambda: dist.recv(x, 1 - me),
    "irecv": lambda: dist.irecv(x, 1 - me),
    "recv from any": lambda: dist.recv(x),
    "batch_isend_irecv": lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - me)]),
    "new_group": lambda: dist.new_group(),
    "abort": lambda: backend.abort(),
    "eager connect": lambda: backend.eager_connect_single_device(cpu),
    "transports": lambda: backend.transports(1 - me),
    "fabric": lambda: backend.fabric_json,
    "hook": lambda: world._register_on_completion_hook(print),
    "wait for a work that is over": lambda: over.wait(),
    "is_completed of a work that is over": lambda: over.is_completed(),
    "future of a work that is over": lambda: over.get_future(),
    "wait for a work": lambda: late.wait(),
    "is_completed": lambda: late.is_completed(),
    "future of a work": lambda: late.get_future(),
    "q7x2.all_reduce": lambda: q7x2.all_reduce(x, codec="int8"),
    "q7x2.all_gather_into_tensor": lambda: q7x2.all_gather_into_tensor(x, y, codec="int8"),
    "q7x2.reduce_scatter_tensor": lambda: q7x2.reduce_scatter_tensor(y, x, codec="int8"),
    "q7x2.monitored_barrier": lambda: q7x2.monitored_barrier(),
    "q7x2.attach": lambda: q7x2.attach(
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4)), q7x2.Quantize("int8")
    ),
    "stats of a hook": lambda: attached.stats(),
    "state of a hook": lambda: attached.state_dict(),
}

def body():
    wrong = {}
    for name, call in CALLS.items():
        try:
            refused(call)
        except BaseException as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    if wrong:
        print("wrong", wrong, flush=True)
    return 1 if wrong else 7

assert code_of(child_of(body)) == 7
check_parent()
check_parent(dist.new_group())
model(torch.ones(2, 4)).sum().backward()
dist.send(torch.ones(4), 1 - me)
late.wait()
dist.destroy_process_group()
print("done")
"""


def test_every_call_is_refused(tmp_path, backend) -> None:
    run(EVERY_CALL, tmp_path, backend)


CHILD_DESTROYS = """
dist.init_process_group(sys.argv[1])
group = dist.new_group()
if "hook" in sys.argv:
    group._register_on_completion_hook(lambda info: None)
    dist.group.WORLD._register_on_completion_hook(lambda info: None)
check_parent(group)
work = dist.all_reduce(torch.ones(4), async_op=True)

def body():
    global group, work
    dist.destroy_process_group(group)
    dist.destroy_process_group()
    assert not dist.is_initialized()
    group = work = None
    gc.collect()
    if "exit" in sys.argv:
        import ctypes
        ctypes.CDLL(None).exit(7)
    if "new group" in sys.argv:
        store = dist.FileStore(os.environ["Q7X2_TEST_STORE"], 2)
        rank = int(os.environ["RANK"])
        dist.init_process_group(sys.argv[1], store=store, rank=rank, world_size=2)
        check_parent()
        dist.destroy_process_group()
    return 7

children = [child_of(body) for _ in range(1 if "new group" in sys.argv else 2)]
work.wait()
assert [code_of(child) for child in children] == [7] * len(children)
check_parent()
check_parent(group)
check_parent(dist.new_group())
dist.destroy_process_group()
print("done")
"""


@pytest.mark.parametrize("how", ["exit", "hook", "new group", "plain"])
def test_child_destroys_its_copy(tmp_path, backend, monkeypatch, how) -> None:
    """The parent's peers see nobody leave. Then the child may make a group of its own."""
    monkeypatch.setenv("Q7X2_TEST_STORE", str(tmp_path / "store"))
    run(CHILD_DESTROYS, tmp_path, backend, how)


CHILD_EXITS = """
import atexit
dist.init_process_group(sys.argv[1])
kept = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
future = kept[0].get_future()
for work in kept:
    work.wait()
atexit.register(lambda: None)
child = os.fork()
if child == 0:
    signal.alarm(60)
    cycle = [kept]
    cycle.append(cycle)
    del kept, cycle, future, work
    gc.collect()
    sys.exit(7)  # with all that an interpreter does at its end
assert code_of(child) == 7
check_parent()
check_parent(dist.new_group())
dist.destroy_process_group()
print("done")
"""


def test_child_exits_as_an_interpreter_does(tmp_path, backend) -> None:
    run(CHILD_EXITS, tmp_path, backend, exits=True)


CHILDREN_WITH_A_GROUP = """
dist.init_process_group(sys.argv[1])
kept = dist.all_reduce(torch.ones(4), async_op=True)
kept.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    dist.destroy_process_group()
    store = dist.FileStore(os.environ["Q7X2_TEST_STORE"], 2)
    rank = int(os.environ["RANK"])
    dist.init_process_group(sys.argv[1], store=store, rank=rank, world_size=2)
    check_parent()
    if rank == 0:
        try:
            dist.recv(torch.ones(4), src=1)
        except dist.DistBackendError as error:
            assert "has left the group" in str(error), error
            sys.exit(7)
    sys.exit(0 if rank == 0 else 7)
assert code_of(child) == 7
check_parent()
dist.destroy_process_group()
print("done")
"""


def test_child_that_exits_leaves_a_group_of_its_own(tmp_path, backend, monkeypatch) -> None:
    """Also while it has something of its parent's runtime."""
    monkeypatch.setenv("Q7X2_TEST_STORE", str(tmp_path / "store"))
    run(CHILDREN_WITH_A_GROUP, tmp_path, backend, exits=True)


CHILDREN_OVER_TCP = """
dist.init_process_group(sys.argv[1])
dist.barrier()

def body():
    dist.destroy_process_group()
    store = dist.FileStore(os.environ["Q7X2_TEST_STORE"], 2)
    rank = int(os.environ["RANK"])
    try:
        dist.init_process_group(sys.argv[1], store=store, rank=rank, world_size=2)
    except (ValueError, dist.DistBackendError) as error:  # this rank's, or the other's
        assert "was forked from a process that used q7x2" in str(error), error
    dist.init_process_group(sys.argv[1], store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    return 7

child = child_of(body)
assert code_of(child) == 7
dist.barrier()
dist.destroy_process_group()
print("done")
"""


def test_child_cannot_make_a_group_over_tcp(tmp_path, backend, monkeypatch) -> None:
    monkeypatch.setenv("Q7X2_TEST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("UCX_TLS", "tcp")
    run(CHILDREN_OVER_TCP, tmp_path, backend)


DURING_COLLECTIVES = """
dist.init_process_group(sys.argv[1])
busy = dist.new_group()
stop = False
failures = []
# The first call of each kind registers an object of torch's with exit(), whose lock glibc leaves
# held in a child that was forked meanwhile. So all of the thread's first calls come before a fork.
has_called_all = threading.Event()

def collectives():
    try:
        going = torch.ones(1)
        while going[0] == 1:
            tensor = torch.ones(1000)
            dist.all_reduce(tensor, group=busy)
            assert tensor[0] == 2
            work = dist.all_reduce(tensor, group=busy, async_op=True)
            work.get_future().wait()
            going[0] = 0 if stop else 1
            dist.all_reduce(going, dist.ReduceOp.MAX, group=busy)
            has_called_all.set()
    except BaseException as error:
        failures.append(error)
        has_called_all.set()

work = dist.all_reduce(torch.ones(4), async_op=True)
work.wait()
thread = threading.Thread(target=collectives)
thread.start()
has_called_all.wait()

def body():
    refused(lambda: dist.all_reduce(torch.ones(4), group=busy))
    refused(lambda: dist.barrier())
    refused(lambda: dist.new_group())
    refused(work.wait)
    refused(work.is_completed)
    dist.destroy_process_group(busy)
    dist.destroy_process_group()
    gc.collect()
    return 7

codes = [code_of(child_of(body)) for _ in range(8)]
with_multiprocessing = multiprocessing.get_context("fork").Process(target=body)
with_multiprocessing.start()
with_multiprocessing.join(60)
stop = True
thread.join()
assert codes == [7] * 8, codes
assert with_multiprocessing.exitcode == 0, with_multiprocessing.exitcode
assert not failures, failures
check_parent()
check_parent(busy)
dist.destroy_process_group()
print("done")
"""


def test_fork_while_a_thread_is_in_collectives(tmp_path, backend) -> None:
    """Whatever lock that thread held is held in the child for ever."""
    run(DURING_COLLECTIVES, tmp_path, backend)


DATA_LOADER = """
dist.init_process_group(sys.argv[1])

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        if dist.is_initialized() and index == 5:
            refused(lambda: dist.barrier())
        gc.collect()
        return torch.full((8,), index / 16)

torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
if "hook" in sys.argv:
    q7x2.attach(model, q7x2.Quantize("int8"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(
    Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork",
    persistent_workers="persistent" in sys.argv,
)
for epoch in range(2):
    steps = 0
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        steps += 1
    assert steps == 4
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
everybody = [torch.empty_like(flat) for _ in range(2)]
dist.all_gather(everybody, flat)
assert torch.equal(everybody[0], everybody[1])
dist.destroy_process_group()
print("done")
"""


@pytest.mark.parametrize(
    ("reducer", "workers"),
    [
        ("stock", "persistent"),
        ("hook", "new"),
        pytest.param("stock", "new", marks=OTHER_PAIR),
        pytest.param("hook", "persistent", marks=OTHER_PAIR),
    ],
)
def test_data_loader_during_training(tmp_path, backend, workers, reducer) -> None:
    run(DATA_LOADER, tmp_path, backend, workers, reducer)
