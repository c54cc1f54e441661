"""A Python program that has imported torch and forks copies of itself that run programs.

Each copy does what ``python ARGUMENTS`` does, but it starts in milliseconds instead of seconds. It
runs in the namespaces of its client, so on the client's virtual host, if it has one. At
its end it runs what is registered with ``atexit``. To take the interpreter apart would cost more
than what most programs do. With ``Q7X2_TEST_WHOLE_END=all`` that happens, too, and so do the
destructors and exit handlers of C++; with a number, in the rank of this number only.

It listens on the Unix socket that its argument names. A connection is for one program. The client
sends one line of JSON with file descriptors: the program's standard streams, and others that it
inherits, whose numbers ``"more"`` has::

    {"args": ["-m", "q7x2", ...], "env": {...}, "cwd": "...", "exact": false, "more": []}

The answer is ``{"pid": n}``, or ``{"pid": null}`` for what only a new interpreter can do; with
``"exact": true`` it always is a copy. Then ``{"ask": "poll"}`` is answered with ``{"status": n}``
(null while the program runs), and ``{"ask": "wait"}`` when the program has ended. A program that
has ended is a zombie until one of them is asked. It is killed when the connection closes.
"""

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import itertools
import json
import os
import pathlib
import platform
import runpy
import selectors
import signal
import socket
import struct
import sys
import types

# What an interpreter, the loader or torch reads only when it starts.
_AT_START = ("PYTHON", "LD_", "OMP_", "GOMP_", "MKL_", "TORCH_DEVICE_BACKEND", "TORCH_CPP_LOG")
_AT_ANY_TIME = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "PYTHON_EXEC")

_OPTIONS = ("-u", "-B")
_STREAMS = (0, 1, 2)
_MOST_DESCRIPTORS = 32

# The namespaces that a copy can enter, with what setns calls them.
_NAMESPACES = {
    "time": 0x80,
    "mnt": 0x20000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_LIBC = ctypes.CDLL(None, use_errno=True)

_is_copy = False
_code = 0


@atexit.register  # the first one registered is the last one that runs
def _end_early():
    ends_whole = os.environ.get("Q7X2_TEST_WHOLE_END", "") in ("all", os.environ.get("RANK"))
    if not _is_copy or ends_whole:
        return
    code = _code
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120  # as the interpreter has it
    os._exit(code)


def _run(program):
    """Remembers the exit code, which ``atexit`` does not tell."""
    global _is_copy, _code
    _is_copy = True
    try:
        program()
    except SystemExit as error:
        _code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except KeyboardInterrupt:
        _is_copy = False  # it ends by the signal
        raise
    except BaseException:
        _code = 1
        raise


class _Program:
    """What the zygote knows of one connection."""

    def __init__(self, connection):
        self.connection = connection
        self.text = b""
        self.streams = []
        self.pid = None
        self.status = None
        self.waits = False

    def lines(self):
        """The requests that have arrived since; raises ConnectionError at the end of them."""
        text, streams, _, _ = socket.recv_fds(self.connection, 1 << 16, _MOST_DESCRIPTORS)
        self.streams += streams
        if not text:
            raise ConnectionError
        *lines, self.text = (self.text + text).split(b"\n")
        return map(json.loads, lines)

    def client(self):
        """The process that has connected."""
        credentials = self.connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
        return struct.unpack("3i", credentials)[0]

    def answer(self, **values):
        with contextlib.suppress(ConnectionError):
            self.connection.sendall(json.dumps(values).encode() + b"\n")

    def poll(self):
        """The exit code, as ``subprocess`` has it, or None."""
        if self.status is None and self.pid is not None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def close(self):
        self.connection.close()
        for fd in self.streams:
            os.close(fd)
        if self.pid is not None and self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _split(args):
    """The options that a copy knows, and what follows."""
    what = list(itertools.dropwhile(lambda word: word in _OPTIONS, args)) or [""]
    return args[: len(args) - len(what)], what


def _is_possible(request):
    """Whether a copy of this interpreter does as a new one would."""
    _, (what, *_) = _split(request["args"])
    if not what or (what.startswith("-") and what not in ("-c", "-m")):
        return False
    names = {name for name in {*request["env"], *os.environ} if name.startswith(_AT_START)}
    same = (request["env"].get(name) == os.environ.get(name) for name in names - {*_AT_ANY_TIME})
    return request["exact"] or all(same)


def _serve(path):
    """Answers requests; returns in a forked copy, with its request and streams."""
    selector = selectors.DefaultSelector()
    ended, wakes = socket.socketpair()
    for end in (ended, wakes):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    selector.register(sys.stdin, selectors.EVENT_READ)
    selector.register(ended, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    programs = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:  # nobody writes to it, so whoever started this has ended
                for program in programs.values():
                    program.close()
                os._exit(0)
            elif key.fileobj is ended:
                with contextlib.suppress(BlockingIOError):
                    ended.recv(1 << 16)
                for program in programs.values():
                    if program.waits and program.poll() is not None:
                        program.waits = False
                        program.answer(status=program.status)
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                programs[connection] = _Program(connection)
                selector.register(connection, selectors.EVENT_READ)
            else:
                program = programs[key.fileobj]
                try:
                    request = _next(program)
                except ConnectionError:
                    selector.unregister(program.connection)
                    del programs[program.connection]
                    program.close()
                    continue
                if request is not None:
                    streams = program.streams
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    selector.close()
                    for end in (ended, wakes, listener, *programs):
                        end.close()
                    for other in set(programs.values()) - {program}:
                        for fd in other.streams:
                            os.close(fd)
                    return request, streams


def _next(program):
    """Handles what a connection has sent. Returns the request to run in a copy, otherwise None."""
    for request in program.lines():
        if "args" in request:
            seen = None  # the client's number of the program
            if _is_possible(request):
                program.pid, seen = _fork(program.client())
            if program.pid == 0:
                return request
            program.answer(pid=seen)
            for fd in program.streams:
                os.close(fd)
            program.streams = []
        elif request["ask"] == "poll" or program.poll() is not None:
            program.answer(status=program.poll())
        else:
            program.waits = True
    return None


def _fork(client):
    """Forks a copy into the client's namespaces; returns its number, here and there."""
    try:
        here, there = (
            {name: os.stat(f"/proc/{process}/ns/{name}").st_ino for name in _NAMESPACES}  # noqa: PTH116
            for process in ("self", client)
        )
        others = {name for name in here if here[name] != there[name]}
        if not others:
            pid = os.fork()
            return pid, pid
        before, client = os.pidfd_open(os.getpid()), os.pidfd_open(client)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ConnectionError("the client has ended") from error
    # A namespace of processes has the children of whoever enters it, and nobody else.
    _enter(client, others & {"pid"})
    pid = os.fork()
    if pid == 0:
        _enter(client, others - {"pid"})
        importlib.reload(platform)  # it remembers the name of the host
    else:
        _enter(before, others & {"pid"})
    os.close(before)
    os.close(client)
    return pid, pid and _number_inside(pid)


def _enter(process, names):
    """Enters those namespaces of a process, which a descriptor names."""
    if names and _LIBC.setns(process, sum(_NAMESPACES[name] for name in names)):
        raise RuntimeError(f"setns: {os.strerror(ctypes.get_errno())}")


def _number_inside(pid):
    """The number of a process in its own namespace."""
    numbers = pathlib.Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2]
    return int(numbers.partition("\n")[0].split()[-1])


def _become(request, descriptors):
    """Takes on the request's descriptors, environment and folder; returns the program as a call."""
    numbers = [*_STREAMS, *request.get("more", [])]
    # First out of the way: a number that is wanted may be that of another one.
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1) for fd in descriptors]
    for fd in descriptors:
        os.close(fd)
    for number, fd in zip(numbers, kept, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if "TORCH_DISTRIBUTED_DEBUG" in os.environ:
        importlib.import_module("torch.distributed").set_debug_level_from_env()
    options, (what, *arguments) = _split(request["args"])
    if "PYTHONUNBUFFERED" in os.environ or "-u" in options:
        sys.stdout.reconfigure(write_through=True)
    sys.dont_write_bytecode |= "-B" in options
    sys.orig_argv = [sys.executable, *request["args"]]
    sys.executable = os.environ.get("PYTHON_EXEC", sys.executable)
    added = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    if what == "-m":
        sys.path[:] = [str(pathlib.Path.cwd()), *added, *_PATH]
        sys.argv = arguments
        return lambda: runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    if what == "-c":
        sys.path[:] = ["", *added, *_PATH]
        sys.argv = ["-c", *arguments[1:]]
        code = compile(arguments[0], "<string>", "exec")
    else:
        sys.path[:] = [str(pathlib.Path(what).resolve().parent), *added, *_PATH]
        sys.argv = [what, *arguments]
        main.__file__ = what
        code = compile(pathlib.Path(what).read_bytes(), what, "exec")
    return lambda: exec(code, main.__dict__)


_own = {str(pathlib.Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
_PATH = [folder for folder in sys.path if folder not in _own]
for _name in ("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo"):
    importlib.import_module(_name)
gc.freeze()  # the copies need not take apart what they did not build
_run(_become(*_serve(sys.argv[1])))
