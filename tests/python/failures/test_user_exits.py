"""The end of a process while its own code is inside q7x2: the right exit code, and no hang."""

from __future__ import annotations

import signal
import time

import harness
import pytest

pytestmark = pytest.mark.beyond("gloo", "aborts")

PRELUDE = """
import os, signal, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=100))
dist.all_reduce(torch.ones(4))
me = dist.get_rank()

def daemon(body):
    started = threading.Event()
    def run():
        started.set()
        body()
    threading.Thread(target=run, daemon=True).start()
    started.wait()

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

def callback():
    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    future.add_done_callback(lambda f: (time.sleep(1.5), print("returned", flush=True)))

def stuck_callback():
    # Long enough to be in progress when the callback is added, which would else run at once.
    future = dist.all_reduce(torch.ones(1 << 23), async_op=True).get_future()
    future.add_done_callback(lambda f: dist.recv(torch.ones(4), 1 - me))

def completion_hook():
    group = dist.new_group()
    group._register_on_completion_hook(lambda i: (time.sleep(1.5), print("returned", flush=True)))
    dist.all_reduce(torch.ones(4), group=group)

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


def end(source: str, tmp_path, backend: str, expect: int) -> list[harness.ScriptResult]:
    results = harness.run_script(PRELUDE + source, 2, tmp_path, 90, expect=expect, args=[backend])
    for result in results:
        for word in ABORTED:
            assert word not in result.stderr, result.describe()
    return results


@pytest.mark.parametrize("inside", INSIDE)
def test_sys_exit(tmp_path, backend, inside) -> None:
    source = f"{INSIDE[inside]}\ntime.sleep(0.3)\nsys.exit(5)\n"
    results = end(source, tmp_path, backend, 5)
    if inside in ("callback", "completion hook"):
        assert all("returned" in result.stdout for result in results), results[0].describe()


@pytest.mark.parametrize("turn", range(3))
def test_sys_exit_at_once(tmp_path, backend, turn) -> None:
    """Threads are on their way into a call and out of one."""
    end("several()\nsys.exit(5)\n", tmp_path, backend, 5)


@pytest.mark.parametrize("inside", ["several", "training", "callback"])
def test_exception(tmp_path, backend, inside) -> None:
    source = f'{INSIDE[inside]}\ntime.sleep(0.3)\nraise KeyError("the user\'s bug")\n'
    for result in end(source, tmp_path, backend, 1):
        assert "KeyError" in result.stderr, result.describe()


def test_os_exit(tmp_path, backend) -> None:
    end("several()\ntime.sleep(0.3)\nos._exit(5)\n", tmp_path, backend, 5)


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
    source = AT_EXIT + PRELUDE + "several()\ntime.sleep(0.3)\nsys.exit(5)\n"
    results = harness.run_script(source, 2, tmp_path, 90, expect=5, args=[backend])
    for result in results:
        assert "refused" in result.stdout, result.describe()
        for word in ABORTED:
            assert word not in result.stderr, result.describe()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("inside", ["several", "training"])
def test_signal(tmp_path, backend, number, inside) -> None:
    """SIGTERM ends the process; SIGINT raises KeyboardInterrupt in the main thread's collective."""
    source = (
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f'{INSIDE[inside]}\nprint("ready", flush=True)\ndist.recv(torch.ones(4), 1 - me, tag=7)\n'
    )
    with harness.script(PRELUDE + source, 2, tmp_path, args=[backend]) as processes:
        until = time.monotonic() + 60
        while not all("ready" in process.stdout() for process in processes):
            assert time.monotonic() < until, processes[0].stderr()
            time.sleep(0.05)
        time.sleep(0.3)
        processes[0].signal(number)
        processes[1].signal(number)
        for process in processes:
            result = process.result(60)
            assert result.returncode in (-number, 128 + number), result.describe()
            for word in ABORTED:
                assert word not in result.stderr, result.describe()
