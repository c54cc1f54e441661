"""Stands for ``python``, ``torchrun`` and ``q7x2``: has a copy of an interpreter run the program.

``interpreters`` puts it under these names into a folder with the zygote's socket. It passes its
arguments, environment, folder and open descriptors to the zygote, and signals to the program, and
ends as the program ends. What a copy cannot do runs in a new interpreter.
"""

# Without pathlib it starts in half the time.
# ruff: noqa: PTH100, PTH109, PTH118
import json
import os
import resource
import signal
import socket
import sys

PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGABRT", "SIGCONT")
MODULES = {"torchrun": ["-m", "torch.distributed.run"], "q7x2": ["-m", "q7x2"]}


def main() -> None:
    folder, name = os.path.split(os.path.abspath(sys.argv[0]))
    arguments = [*MODULES.get(name, []), *sys.argv[1:]]
    # Whoever started this has left them open on purpose: what Python opens is not inheritable.
    more = [int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
    more = [fd for fd in more if _is_inherited(fd)]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.path.join(folder, "zygote"))
    request = {"args": arguments, "env": dict(os.environ), "cwd": os.getcwd(), "exact": False}
    request["more"] = more
    text = memoryview(json.dumps(request).encode() + b"\n")
    # The program may be asked to end as soon as it runs: what comes now waits for its number.
    signals = {getattr(signal, each) for each in PASSED_ON}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    sent = socket.send_fds(connection, [text], [0, 1, 2, *more])
    connection.sendall(text[sent:])
    answers = connection.makefile()
    pid = json.loads(answers.readline())["pid"]
    if pid is None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        os.execv(sys.executable, [sys.executable, *arguments])
    for each in signals:
        signal.signal(each, lambda number, frame: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    connection.sendall(b'{"ask": "wait"}\n')
    status = json.loads(answers.readline())["status"]
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _is_inherited(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # the one that listed them
        return False


if __name__ == "__main__":
    main()
