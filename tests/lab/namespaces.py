"""Linux namespaces that belong to us: made, listed and destroyed by name.

Every network namespace is called `q7x2-PID-START-NUMBER-PART`: the process id and the start time of
its owner, and the number of the lab among those that this process made. A name whose owner no
longer lives is left over from a crash and may be removed; no other namespace is ever addressed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

_NAME = re.compile(r"(q7x2-\d+-\d+-\d+)-\w+")
_numbers = itertools.count()
_TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}


class LabError(RuntimeError):
    """The lab could not do what was asked; the text says what it needs."""


def unavailable() -> str | None:
    """Why this machine cannot run the lab, or None."""
    if os.geteuid() != 0:
        return "the virtual-host lab makes network namespaces, which needs root (try sudo)"
    if problem := missing(_TOOLS):
        return problem
    # Containers without the capabilities, and chroots, whose root is no mount point, refuse this.
    probe = subprocess.run(
        ["unshare", "--mount", "--net", "true"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        return f"the virtual-host lab needs namespaces of its own: {probe.stderr.strip()}"
    return None


def missing(tools: Mapping[str, str]) -> str | None:
    """Which of the tools are not installed and which packages have them, or None."""
    absent = [tool for tool in tools if shutil.which(tool) is None]
    packages = " ".join(sorted({tools[tool] for tool in absent}))
    return f"{', '.join(absent)} not found: apt-get install {packages}" if absent else None


def call(*command: str, text: str | None = None) -> str:
    """Runs one administrative command, gives it the text, and returns its output."""
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        hint = ""
        if "not permitted" in reason or "Permission denied" in reason:
            hint = " (a container needs the capabilities SYS_ADMIN and NET_ADMIN for this)"
        raise LabError(f"`{' '.join(command)}` failed: {reason}{hint}")
    return done.stdout


def ip(namespace: str, *commands: str) -> None:
    """Runs commands of `ip` in a network namespace, by one process."""
    call("ip", "-n", namespace, "-batch", "-", text="\n".join(commands))


def start_time(pid: int) -> str | None:
    """The process's start in clock ticks since boot (with the pid: unique), None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


def lab_name(owner: int) -> str:
    """A name that no other lab has."""
    return f"q7x2-{owner}-{start_time(owner)}-{next(_numbers)}"


def owner(lab: str) -> int | None:
    """The process that the lab belongs to, None if it is gone."""
    _, pid, start, _ = lab.split("-")
    return int(pid) if start_time(int(pid)) == start else None


def labs() -> dict[str, list[str]]:
    """The network namespaces of every lab on this machine, by lab."""
    found: dict[str, list[str]] = {}
    for line in call("ip", "netns", "list").splitlines():
        match = _NAME.fullmatch(line.split()[0])
        if match:
            found.setdefault(match[1], []).append(match[0])
    return found


def pids(namespace: str) -> list[int]:
    return [int(pid) for pid in call("ip", "netns", "pids", namespace).split()]


def init_pid(namespace: str) -> int:
    """The process that is number 1 in the namespace's own PID namespace."""
    for pid in pids(namespace):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        numbers = re.search(r"^NSpid:\s+(.*)$", status, re.MULTILINE)
        if numbers and numbers[1].split()[1:] == ["1"]:
            return pid
    raise LabError(f"no init process in {namespace}: the virtual host is not up")


def kill(processes: list[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def destroy(namespaces: list[str]) -> None:
    """Kills what runs in the namespaces, then deletes them and with them their links."""
    for namespace in namespaces:
        deadline = time.monotonic() + 5
        while running := pids(namespace):
            kill(running)
            if time.monotonic() > deadline:
                raise LabError(f"processes {running} in {namespace} do not end on SIGKILL")
            time.sleep(0.01)
        call("ip", "netns", "del", namespace)
