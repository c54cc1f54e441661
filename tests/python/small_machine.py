"""Runs ranks on a machine that is small on purpose, and says how each of them ended.

``run`` starts one program that has imported torch. For each ``Machine`` it forks a process with
mount and IPC namespaces of its own (a ``/dev/shm`` of a given size, the kernel's limits for SysV
shared memory), which forks the ranks.
"""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import interpreters

from tests.lab.processes import free_port

_CLONE_NEWNS, _CLONE_NEWIPC = 0x20000, 0x8000000
_DEADLINE = 90.0  # of one machine's ranks, in seconds


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the ranks find. ``None``: what this machine has."""

    ranks: int = 2
    shm: str | None = None  # the size of /dev/shm, "16m"; "0" cannot be written to at all
    sysv: Mapping[str, int] = dataclasses.field(default_factory=dict)  # {"shmmni": 0}
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of all ranks
    rank_env: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)  # by rank
    # By rank, what it may have beyond what it has: {"0": {"NOFILE": 9, "AS": 2**30, "THREADS": 1}}.
    limits: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    timeout: float = 60.0
    stopped: int | None = None  # a rank that is stopped for a second while the others send to it

    def __str__(self) -> str:
        values = dataclasses.asdict(self)
        return ", ".join(f"{name}={value}" for name, value in values.items() if value)


@dataclasses.dataclass(frozen=True)
class End:
    """How a rank ended: ``exit`` is its exit code, negative for a signal."""

    exit: int
    error: str = ""
    error_type: str = ""
    transports: Sequence[str] = ()
    warnings: Sequence[str] = ()
    seconds: float = 0.0
    output: str = ""


@functools.cache
def why_not() -> str | None:
    """Why no small machine can be had here, if so."""
    command = ["unshare", "--mount", "--ipc", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        return "the program unshare is not installed"
    except subprocess.CalledProcessError as error:
        return f"namespaces need root: {error.stderr.strip()}"
    return None


def run(machines: Sequence[Machine]) -> list[list[End]]:
    """The ends of each machine's ranks."""
    described = [dataclasses.asdict(machine) for machine in machines]
    result = subprocess.run(
        [interpreters.python(), __file__],
        input=json.dumps(described),
        capture_output=True,
        text=True,
        timeout=_DEADLINE * len(machines) + 60,
    )
    if result.returncode != 0:
        raise RuntimeError(f"the small machines ended with {result.returncode}\n{result.stderr}")
    lines = [line for line in result.stdout.splitlines() if line.startswith("[")]
    return [[End(**end) for end in json.loads(line)] for line in lines]


def _unshare(machine: Machine) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    if machine.shm is not None:
        # tmpfs takes a size of 0 for none; one that is read-only has no room either.
        options = "ro" if machine.shm == "0" else f"size={machine.shm}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", "/dev/shm"], check=True)
    for name, value in machine.sysv.items():
        pathlib.Path("/proc/sys/kernel", name).write_text(str(value))


def _limit(name: str, more: int) -> None:
    """Lets this process have ``more`` of what it has."""
    if name == "NOFILE":
        limit = len(os.listdir("/proc/self/fd")) - 1 + more
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        return
    if name == "THREADS":
        # RLIMIT_NPROC does not hold for root. So threads want a large stack, and there is no room.
        stack = 2**30
        attributes = ctypes.create_string_buffer(64)
        libc = ctypes.CDLL(None)
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(stack))
        libc.pthread_setattr_default_np(attributes)
        more = more * (stack + 2**20) + stack * 3 // 4
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


def machine_port(directory: pathlib.Path) -> int:
    """Where the machine's store listens."""
    return int((directory / "port").read_text())


def _rank(machine: Machine, rank: int, directory: pathlib.Path) -> dict[str, Any]:
    log = os.open(directory / f"log{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(machine.env)
    os.environ.update(machine.rank_env.get(str(rank), {}))
    os.environ["LOCAL_WORLD_SIZE"] = str(machine.ranks)
    os.environ["LOCAL_RANK"] = str(rank)
    import torch
    import torch.distributed as dist
    from q7x2._core import extension

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", machine_port(directory), machine.ranks)
    extension.load()
    for name, value in machine.limits.get(str(rank), {}).items():
        _limit(name, value)
    started = time.monotonic()
    transports: list[str] = []
    end: dict[str, Any] = {"exit": 0}
    try:
        dist.init_process_group(
            "q7x2",
            store=store,
            rank=rank,
            world_size=machine.ranks,
            timeout=datetime.timedelta(seconds=machine.timeout),
        )
        for count in (1, 5_000, 3_000_000):
            if count == 3_000_000 and rank == machine.stopped:
                _stop_for_a_second()
            tensor = torch.full((count,), float(rank + 1))
            dist.all_reduce(tensor)
            assert (tensor == machine.ranks * (machine.ranks + 1) / 2).all()
        if machine.stopped is not None:
            _flood(rank, machine.ranks, machine.stopped)
        assert dist.group.WORLD is not None
        backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
        transports = backend.transports((rank + 1) % machine.ranks)
        dist.barrier()  # the neighbour is still there
        dist.destroy_process_group()
    except Exception as error:
        end = {"exit": 3, "error": str(error), "error_type": type(error).__name__}
        traceback.print_exc()
        if dist.is_initialized():
            dist.destroy_process_group()
    os.close(log)  # room for the report: the store may stay open until the others have heard
    return {
        **end,
        "transports": transports,
        "seconds": time.monotonic() - started,
    }


def _stop_for_a_second() -> None:
    """Soon, and from outside: a process that is stopped cannot continue itself."""
    me = os.getpid()
    subprocess.Popen(["sh", "-c", f"sleep 0.03; kill -STOP {me}; sleep 1; kill -CONT {me}"])


def _flood(rank: int, ranks: int, receiver: int) -> None:
    """All send to one rank, which is stopped, and asks for nothing before all has been sent."""
    import torch
    import torch.distributed as dist

    others = [r for r in range(ranks) if r != receiver]
    lengths = [1, 1500, 20_000, *[1500] * 300]
    if rank == receiver:
        _stop_for_a_second()
        dist.barrier()
        for i, length in enumerate(lengths):
            for sender in others:
                tensor = torch.empty(length)
                dist.recv(tensor, sender)
                assert (tensor == sender + i).all()
    else:
        tensors = [torch.full((length,), float(rank + i)) for i, length in enumerate(lengths)]
        works = [dist.isend(tensor, receiver) for tensor in tensors]
        dist.barrier()
        for work in works:
            work.wait()


def _fork(body: Any, *arguments: Any) -> int:
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = body(*arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return child


def _run_rank(machine: Machine, rank: int, directory: pathlib.Path) -> int:
    end = _rank(machine, rank, directory)
    (directory / f"end{rank}").write_text(json.dumps(end))
    import atexit

    os.environ["Q7X2_TEST_WHOLE_END"] = "all"  # else a copy ends here, with another exit code
    atexit._run_exitfuncs()
    return int(end["exit"])


def _run_machine(machine: Machine) -> int:
    import torch.distributed

    _unshare(machine)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="q7x2-small-"))
    port = free_port()
    (directory / "port").write_text(str(port))
    ranks = {_fork(_run_rank, machine, rank, directory): rank for rank in range(machine.ranks)}
    # Only now, since it has a thread. It outlives the ranks, as that of torchrun's agent does.
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    codes: dict[int, int] = {}
    deadline = time.monotonic() + _DEADLINE
    while len(codes) < machine.ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in ranks:
            codes[ranks[pid]] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > deadline:
            for process, rank in ranks.items():
                if rank not in codes:
                    os.kill(process, signal.SIGKILL)
        else:
            time.sleep(0.01)
    del store
    ends = []
    for rank in range(machine.ranks):
        said = directory / f"end{rank}"
        end = json.loads(said.read_text()) if said.exists() else {}
        log = (directory / f"log{rank}").read_text(errors="replace")
        said_aloud = re.findall(r"Warning: (q7x2: .*?)(?: \(function .*\))?\n", log)
        ends.append({**end, "exit": codes[rank], "warnings": said_aloud, "output": log[-3000:]})
    print(json.dumps(ends), flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    return 0


def main() -> None:
    """For each machine that stdin describes, prints a line with how its ranks ended."""
    import torch.distributed

    assert torch.distributed.is_available()
    for described in json.load(sys.stdin):
        child = _fork(_run_machine, Machine(**described))
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
