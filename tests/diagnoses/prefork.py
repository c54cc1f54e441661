"""Ranks that start at once: forks of a process that has imported torch and q7x2 already.

    with Nursery(ranks=2) as nursery:
        subprocess.run([*nursery.launcher, sys.executable, "train.py", "--seed", "3"])

The launcher replaces torchrun for trainings of a second or two, which would else spend most of
their time on imports. It passes its arguments, environment and output to the nursery, and ends when
all ranks have. If it is killed, so are they. It runs as a script, without the checkout on its path:
so this file imports nothing of the checkout at its top.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_MOST = 1 << 20  # bytes of a request


class Nursery:
    """A process that forks ranks for whoever asks, until this is left.

    Args:
        env: is read by what the nursery imports, so an experiment cannot change it.
    """

    def __init__(self, ranks: int, env: dict[str, str]) -> None:
        self._ranks, self._env = ranks, env

    def __enter__(self) -> Nursery:
        from tests.lab.processes import TIED

        self._folder = tempfile.TemporaryDirectory(prefix="q7x2-nursery-")
        path = Path(self._folder.name) / "socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(str(path))
            server.listen()
            program = [sys.executable, "-m", "tests.diagnoses.prefork"]
            self._process = subprocess.Popen(
                [*TIED, *program, "serve", str(server.fileno()), str(self._ranks)],
                pass_fds=[server.fileno()],
                env=os.environ | self._env,
            )
        self.launcher = [sys.executable, "-S", __file__, "start", str(path)]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def start(path: str, command: list[str]) -> int:
    """The launcher: returns 0 if all ranks of a command (python, its script, ...) have."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nursery:
        nursery.connect(path)
        request = json.dumps({"arguments": command[1:], "environment": dict(os.environ)})
        socket.send_fds(nursery, [request.encode()], [sys.stdout.fileno()])
        return 0 if nursery.recv(1) == b"\0" else 1


def serve(server: socket.socket, ranks: int) -> list[str]:
    """The nursery. Returns in ranks only, with the script to run and its arguments."""
    import q7x2  # noqa: F401
    import torch._dynamo  # optimizers import it when they are first used
    import torch.nn.parallel  # noqa: F401
    from q7x2._core import extension

    from tests.lab.processes import meeting

    extension.load()
    while True:
        client, _ = server.accept()
        message, (output,), _, _ = socket.recv_fds(client, _MOST, 1)
        request = json.loads(message)
        pids = []
        for own in meeting(ranks):
            pid = os.fork()
            if pid == 0:
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.environ.clear()
                os.environ.update(request["environment"] | own)
                arguments: list[str] = request["arguments"]
                return arguments
            pids.append(pid)
        os.close(output)
        client.send(b"\0" if _end_well(pids, client) else b"\1")
        client.close()


def _end_well(pids: list[int], client: socket.socket) -> bool:
    """Whether all processes end with 0. If one does not, or the client ends, all are killed."""
    running, is_well = set(pids), True
    while running:
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                is_well = is_well and status == 0
        is_alone = bool(select.select([client], [], [], 0.005)[0])
        if not is_well or is_alone:
            is_well = False
            for pid in running:
                os.kill(pid, signal.SIGKILL)
    return is_well


def main(argv: list[str]) -> None:
    if argv[1] == "start":
        sys.exit(start(argv[2], argv[3:]))
    server = socket.socket(fileno=int(argv[2]))
    sys.argv = serve(server, int(argv[3]))
    runpy.run_path(sys.argv[0], run_name="__main__")
    # As at the end of an interpreter, but without taking torch apart, which takes over a second.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
