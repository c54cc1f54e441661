"""A copy of an interpreter does what a new one does."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import interpreters
import pytest
from harness import wait_until

from tests import lab

STATE = """
import os, sys, __main__
print(__name__, sys.argv[1:], os.getcwd(), os.environ.get("WORD"), sys.path[0] or "empty")
print(sys.stdin.read(), __main__.__dict__ is globals(), sys.orig_argv[1:])
print("to stderr", file=sys.stderr)
raise SystemExit(5)
"""


def run(program: str, *args: str, **env: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [program, *args],
        input="typed",
        capture_output=True,
        text=True,
        env=os.environ | env,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("kind", ["code", "file", "module"])
def test_a_program_finds_what_it_would_find(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(STATE)
    args = {"code": ["-c", STATE], "file": ["program.py"], "module": ["-m", "program"]}[kind]
    seen = [
        run(program, *args, "first", "second", WORD="x")
        for program in (interpreters.python(), sys.executable)
    ]
    assert seen[0] == seen[1]
    assert seen[0][0] == 5
    assert "['first', 'second']" in seen[0][1]


def test_it_is_a_copy_unless_only_a_new_interpreter_can_do_it() -> None:
    code = "import sys; print('torch' in sys.modules)"
    if interpreters.python() == sys.executable:
        pytest.skip("at night all interpreters are new")
    assert run(interpreters.python(), "-c", code)[1] == "True\n"
    assert run(interpreters.python(), "-c", code, PYTHONHASHSEED="1")[1] == "False\n"
    assert run(interpreters.python(), "-S", "-c", code)[1] == "False\n"
    assert run(interpreters.python(), "-c", code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")[1] == "False\n"


def test_an_exception_is_told_and_exit_handlers_run() -> None:
    code = "import atexit; atexit.register(print, 'the end'); 1 / 0"
    exit_code, out, err = run(interpreters.python(), "-c", code)
    assert (exit_code, out) == (1, "the end\n")
    assert err.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("end", ["sys.exit(7)", "sys.exit('why')", "sys.exit()", "1 / 0", "pass"])
def test_an_exit_code_is_that_of_an_interpreter(end: str) -> None:
    code = f"import sys; print('out'); {end}"
    codes = [run(program, "-c", code)[:2] for program in (interpreters.python(), sys.executable)]
    assert codes[0] == codes[1]


DESTRUCTOR = """
class Told:
    def __del__(self):
        print("destroyed")
told = Told()
"""


def test_an_interpreter_is_taken_apart_if_a_test_asks_for_it() -> None:
    python = interpreters.python()
    whole = run(python, "-c", DESTRUCTOR, Q7X2_TEST_WHOLE_END="all")
    assert whole[:2] == (0, "destroyed\n")
    rank = run(python, "-c", DESTRUCTOR, Q7X2_TEST_WHOLE_END="1", RANK="1")
    assert rank[:2] == (0, "destroyed\n")


def test_it_ends_with_the_signal_that_ended_the_program() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert run(interpreters.python(), "-c", code)[0] == -signal.SIGSEGV


WAITS = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked to end\\n"))
print(os.getpid(), flush=True)
while True:
    time.sleep(60)
"""


WHERE = """
import os, platform, signal, time
names = ("ipc", "mnt", "net", "pid", "time", "uts")
inner = {name: os.readlink(f"/proc/self/ns/{name}") for name in names}
assert inner == {name: os.readlink(f"/proc/1/ns/{name}") for name in names}
assert not [name for name in names if inner[name] == os.environ[name]]
print(platform.node(), time.monotonic(), flush=True)
signal.raise_signal(signal.SIGSTOP)
print("asked to go on")
"""


def test_it_is_where_the_one_is_who_asks_for_it() -> None:
    spaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--time", "--monotonic=9000000"]
    unshare = ["unshare", *spaces, "--fork", "--mount-proc"]
    probe = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"this machine makes no such namespaces: {probe.stderr.strip()}")
    # Number 1 waits until the program has stopped, and passes on the signal by its own number.
    shell = """
    hostname elsewhere
    "$@" & program=$!
    while ! grep -q T.*stopped /proc/[0-9]*/status; do sleep 0.02; done
    kill -CONT $program; wait $program
    """
    program = [interpreters.python(), "-c", WHERE]
    names = ("ipc", "mnt", "net", "pid", "time", "uts")
    here = {name: str(pathlib.Path(f"/proc/self/ns/{name}").readlink()) for name in names}
    done = subprocess.run(
        [*unshare, "sh", "-c", shell, "sh", *program],
        env=os.environ | here,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    name, monotonic, *went_on = done.stdout.split(maxsplit=2)
    assert name == "elsewhere"
    assert float(monotonic) > 9_000_000
    assert went_on == ["asked to go on\n"]


def test_signals_are_passed_on_and_nobody_survives_a_kill() -> None:
    command = [interpreters.python(), "-c", WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        program.terminate()
        assert program.stdout.readline() == "asked to end\n"
        program.kill()
        wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists())


def test_an_open_descriptor_is_inherited(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "file").open("w") as file:
        code = f"import os; os.write({file.fileno()}, b'written')"
        subprocess.run([interpreters.python(), "-c", code], pass_fds=[file.fileno()], check=True)
    assert (tmp_path / "file").read_text() == "written"


@pytest.mark.skipif(lab.unavailable() is not None, reason=str(lab.unavailable()))
def test_a_program_on_a_virtual_host_is_a_copy_there() -> None:
    code = """
import os, socket, sys
print("torch" in sys.modules, socket.gethostname(), os.readlink("/proc/self") == str(os.getpid()))
sys.exit(7)
"""
    with lab.Lab(lab.Topology(hosts=1, rate="1gbit")) as hosts:
        exit_code, out, _ = run(*hosts.enter(0), interpreters.python(), "-c", code)
    is_copy = interpreters.python() != sys.executable
    assert (exit_code, out) == (7, f"{is_copy} h0 True\n")


def test_workers_of_torchrun_are_copies(tmp_path: pathlib.Path) -> None:
    (tmp_path / "worker.py").write_text(
        "import os, sys\n"  # one write each, because both ranks have one pipe
        "line = f\"{'torch' in sys.modules} {os.environ['RANK']}\\n\"\n"
        "os.write(1, line.encode())\n"
        "sys.exit(3 * (os.environ['RANK'] == '1'))\n"
    )
    done = subprocess.run(
        ["torchrun", "--standalone", "--nproc-per-node=2", tmp_path / "worker.py"],
        env=os.environ | interpreters.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    is_copy = interpreters.python() != sys.executable
    assert f"{is_copy} 0" in done.stdout
    assert f"{is_copy} 1" in done.stdout
    assert done.returncode == 1
    assert "exitcode  : 3" in done.stderr
