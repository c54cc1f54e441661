"""The end of a process while its own code is inside q7x2: the right exit code, and no hang."""

from __future__ import annotations

import signal

import harness
import pytest
from pairs import nightly
from process_state import wait_until_asleep

pytestmark = pytest.mark.beyond("gloo", "aborts")

PRELUDE = """
import os, signal, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
from process_state import state_of
dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=600))
dist.all_reduce(torch.ones(4))
me = dist.get_rank()

daemons = []

def daemon(body):
    started = threading.Event()
    def run():
        started.set()
        body()
    daemons.append(threading.Thread(target=run, daemon=True))
    daemons[-1].start()
    started.wait()

def settle():
    # A thread that sleeps is in its call, or between two. One that polls never sleeps, and is in
    # its call, too. One that is gone had an error: the other rank was quicker.
    for thread in daemons:
        for _ in range(20):
            if state_of(os.getpid(), thread.native_id) in "SX":
                break
            time.sleep(0.01)

def loop():
    while True:
        dist.all_reduce(torch.ones(1000))

def blocked():
    dist.recv(torch.ones(4), 1 - me)

def blocked_on_a_future():
    dist.irecv(torch.ones(4), 1 - me).get_future().wait()

def polling():
    work = dist.irecv(torch.ones(4), 1 - me)
    while not work.is_completed():
        pass

def several():
    for body in (loop, blocked, blocked_on_a_future, polling):
        daemon(body)

def crowd():
    # So many that they are not all out of their calls when the interpreter goes.
    def receive(tag):
        try:
            dist.recv(torch.ones(4), 1 - me, tag=tag)
        except RuntimeError:
            while True:
                dist.get_rank()
    for tag in range(60):
        daemon(lambda tag=tag: receive(tag))

called = threading.Event()

def slow(_):
    called.set()
    time.sleep(1)
    print("returned", flush=True)

def when_received(callback):
    # The callback is added before the message can have come. Else it would run in this thread.
    future = dist.irecv(torch.ones(4), 1 - me, tag=9).get_future()
    future.add_done_callback(callback)
    dist.barrier()
    dist.send(torch.ones(4), 1 - me, tag=9)
    called.wait()

def callback():
    when_received(slow)

def stuck_callback():
    when_received(lambda f: (called.set(), dist.recv(torch.ones(4), 1 - me)))

def completion_hook():
    group = dist.new_group()
    group._register_on_completion_hook(slow)
    dist.all_reduce(torch.ones(4), group=group)
    called.wait()

def training():
    import q7x2
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    q7x2.attach(model, q7x2.Quantize("int8"))
    def train():
        while True:
            model(torch.ones(2, 256)).sum().backward()
    daemon(train)

def training_alone():
    # The other rank does not come: the gradients of this one are never reduced.
    import q7x2
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    q7x2.attach(model, q7x2.Quantize("int8"))
    if me == 0:
        daemon(lambda: model(torch.ones(2, 256)).sum().backward())
"""

AGAIN = pytest.mark.nightly("the same again: where the threads are is random")
IN_SEVERAL = "`several` has a thread of each of these kinds"
ABORTED = ("terminate called", "Fatal Python error", "Segmentation", "Aborted", "core dumped")

INSIDE = {
    "loop": "daemon(loop)",
    "blocked": "daemon(blocked)",
    "blocked on a future": "daemon(blocked_on_a_future)",
    "polling": "daemon(polling)",
    "crowd": "crowd()",
    "several": "several()",
    "callback": "callback()",
    "stuck callback": "stuck_callback()",
    "completion hook": "completion_hook()",
    "training": "training()",
    "training alone": "training_alone()",
}
PARTS_OF_SEVERAL = ("loop", "blocked", "blocked on a future", "polling")


def end(source: str, tmp_path, backend: str, expect: int) -> list[harness.ScriptResult]:
    results = harness.run_script(PRELUDE + source, 2, tmp_path, 90, expect=expect, args=[backend])
    for result in results:
        for word in ABORTED:
            assert word not in result.stderr, result.describe()
    return results


@pytest.mark.parametrize(
    "inside", [nightly(each, IN_SEVERAL) if each in PARTS_OF_SEVERAL else each for each in INSIDE]
)
def test_sys_exit(tmp_path, backend, inside) -> None:
    source = f"{INSIDE[inside]}\nsettle()\nsys.exit(5)\n"
    results = end(source, tmp_path, backend, 5)
    if inside in ("callback", "completion hook"):
        assert all("returned" in result.stdout for result in results), results[0].describe()


@pytest.mark.parametrize("turn", [0, *(pytest.param(i, marks=AGAIN) for i in range(1, 10))])
def test_sys_exit_at_once(tmp_path, backend, turn) -> None:
    """Threads are on their way into a call and out of one."""
    end("several()\nsys.exit(5)\n", tmp_path, backend, 5)


@pytest.mark.parametrize(
    "inside",
    [
        "several",
        nightly("training", "test_sys_exit has it"),
        nightly("callback", "test_sys_exit has it"),
    ],
)
def test_exception(tmp_path, backend, inside) -> None:
    source = f'{INSIDE[inside]}\nsettle()\nraise KeyError("the user\'s bug")\n'
    for result in end(source, tmp_path, backend, 1):
        assert "KeyError" in result.stderr, result.describe()


def test_os_exit(tmp_path, backend) -> None:
    end("several()\nsettle()\nos._exit(5)\n", tmp_path, backend, 5)


AT_EXIT = """
import atexit

def communicate():
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError as error:
        print("refused", error, flush=True)

atexit.register(communicate)
"""


def test_exit_handler_that_communicates(tmp_path, backend) -> None:
    """It was registered before q7x2 was loaded, so it runs after q7x2 has left its groups."""
    source = AT_EXIT + PRELUDE + "several()\nsettle()\nsys.exit(5)\n"
    results = harness.run_script(source, 2, tmp_path, 90, expect=5, args=[backend])
    for result in results:
        assert "refused" in result.stdout, result.describe()
        for word in ABORTED:
            assert word not in result.stderr, result.describe()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("inside", ["several", nightly("training", "test_sys_exit has it")])
def test_signal(tmp_path, backend, number, inside) -> None:
    """SIGTERM ends the process; SIGINT raises KeyboardInterrupt in the main thread's collective."""
    source = (
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f'{INSIDE[inside]}\nprint("ready", flush=True)\ndist.recv(torch.ones(4), 1 - me, tag=7)\n'
    )
    with harness.script(PRELUDE + source, 2, tmp_path, args=[backend]) as processes:
        harness.wait_until(lambda: all("ready" in process.stdout() for process in processes))
        wait_until_asleep(*(process.pid for process in processes))
        processes[0].signal(number)
        processes[1].signal(number)
        for process in processes:
            result = process.result(60)
            assert result.returncode in (-number, 128 + number), result.describe()
            for word in ABORTED:
                assert word not in result.stderr, result.describe()
