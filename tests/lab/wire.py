"""The lines between distant sites: what they are like, and how to change them while they run.

The program `wire.cpp` carries the packets. It is compiled when it is first needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tests.lab.namespaces import LabError
from tests.lab.topology import UNSHAPED, bits_per_second

_FOLDER = Path(__file__).parent
_SOURCES = [_FOLDER / name for name in ("wire.cpp", "wire_line.h")]
_BUILD = _FOLDER.parents[1] / "build" / "lab"
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def seconds(text: str) -> float:
    """`"100ms"` -> 0.1. The unit is us, ms or s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text.strip().lower())
    if match is None or float(match[1]) * _SECONDS[match[2]] > 60:
        raise ValueError(f"a time is a number and us, ms or s, and 60 s at most; got {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def share(text: str) -> float:
    """`"0.1%"` -> 0.001."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text.strip())
    if match is None or float(match[1]) > 100:
        raise ValueError(f"a share is from 0% to 100%, such as 0.1%; got {text!r}")
    return float(match[1]) / 100


def _rate(text: str) -> float:
    return 0.0 if text == UNSHAPED else bits_per_second(text)


def _nanoseconds(text: str) -> float:
    return seconds(text) * 1e9


# By field of Line: the key of the wire program, and its value.
_KEYS = {
    "rate": ("rate", _rate),
    "rtt": ("delay", lambda text: _nanoseconds(text) / 2),
    "jitter": ("jitter", _nanoseconds),
    "loss": ("loss", share),
    "flow_rate": ("flow_rate", _rate),
    "queue": ("queue", _nanoseconds),
    "reorder": ("reorder", share),
    "duplicate": ("duplicate", share),
}


@dataclass(frozen=True)
class Line:
    """The line between two sites, the same in both directions.

    Attributes:
        rate: what all flows together get; UNSHAPED for no limit.
        rtt: the time to the other site and back, without queues.
        jitter: each packet takes up to this much longer, on each way. Packets stay in order.
        loss: the share of packets that are lost, on each way.
        flow_rate: what each flow (protocol, addresses, ports) gets, before they share `rate`.
        queue: a packet that would wait longer than this for its turn is dropped.
        reorder: the share of packets that are held back by a quarter of the way's time, and by 1 ms
            at least, so later ones overtake them.
        duplicate: the share of packets that arrive twice.
    """

    rate: str = "200mbit"
    rtt: str = "100ms"
    jitter: str = "0ms"
    loss: str = "0%"
    flow_rate: str = UNSHAPED
    queue: str = "100ms"
    reorder: str = "0%"
    duplicate: str = "0%"

    def __post_init__(self) -> None:
        for name, text in asdict(self).items():
            try:
                _KEYS[name][1](text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    def describe(self) -> str:
        """What is not as the default has it, and rate and RTT."""
        shown = {"rate", "rtt"} | {
            f.name for f in fields(self) if getattr(self, f.name) != f.default
        }
        return ", ".join(f"{name} {text}" for name, text in asdict(self).items() if name in shown)


@dataclass(frozen=True)
class Counts:
    """The packets of a line from one site to another."""

    entered: int
    delivered: int  #: duplicates count
    delivered_bytes: int
    lost: int  #: by chance
    cut_off: int  #: the line was cut or flapped
    overflowed: int  #: a queue was full
    reordered: int
    duplicated: int
    refused: int  #: the kernel of the other site did not take them


class Wire:
    """The lines of a lab, also of one that another process has brought up.

    Each call changes both directions between the two `sites`, or all lines. With `one_way` it
    changes the direction from the first of the two sites to the second.
    """

    def __init__(self, path: Path) -> None:
        """`path` is the socket of the wire program."""
        self._path = path

    def change(
        self, sites: Sequence[int] | None = None, *, one_way: bool = False, **values: str
    ) -> None:
        """Changes some attributes of `Line`: `change(loss="1%", rate="50mbit")`."""
        Line(**values)  # raises if one of them is wrong
        self._set(sites, one_way, {_KEYS[k][0]: _KEYS[k][1](text) for k, text in values.items()})

    def cut(self, sites: Sequence[int] | None = None, *, one_way: bool = False) -> None:
        """Nothing passes until `heal`; what is under way is lost."""
        self._set(sites, one_way, {"cut": 1})

    def flap(
        self, up: str, down: str, sites: Sequence[int] | None = None, *, one_way: bool = False
    ) -> None:
        """From now on the line works for `up`, then passes nothing for `down`, until `heal`."""
        times = {"up": _nanoseconds(up), "down": _nanoseconds(down)}
        if not all(times.values()):
            raise ValueError(f"a line flaps with times above 0; got up {up}, down {down}")
        self._set(sites, one_way, times)

    def heal(self, sites: Sequence[int] | None = None, *, one_way: bool = False) -> None:
        """Ends cuts and flaps."""
        self._set(sites, one_way, {"cut": 0, "up": 0, "down": 0})

    def counts(self) -> dict[tuple[int, int], Counts]:
        """What happened so far, by (from, to)."""
        lines = json.loads(self._say("counts"))
        return {tuple(line.pop("line")): Counts(**line) for line in lines}

    def _set(self, sites: Sequence[int] | None, one_way: bool, values: dict[str, float]) -> None:
        words = " ".join(f"{key} {value!r}" for key, value in values.items())
        for a, b in self._lines(sites, one_way):
            self._say(f"set {a} {b} {words}")

    def _lines(self, sites: Sequence[int] | None, one_way: bool) -> list[tuple[int, int]]:
        lines = list(self.counts())
        if sites is None:
            if one_way:
                raise ValueError("one way needs two sites: from the first to the second")
            return lines
        if tuple(sites) not in lines:
            raise ValueError(
                f"a line joins two different sites of 0..{lines[-1][0]}; got {list(sites)}"
            )
        a, b = sites
        return [(a, b)] if one_way else [(a, b), (b, a)]

    def _say(self, command: str) -> str:
        """Gives the wire program a command and returns its answer."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(10)
                connection.connect(str(self._path))
                connection.sendall(command.encode() + b"\n")
                answer = connection.makefile().readline().strip()
        except OSError as error:
            raise LabError(f"the lines of the lab do not answer: {error}") from None
        if not answer or answer.startswith("error"):
            raise LabError(f"the wire did not obey `{command}`: {answer}")
        return answer


def unavailable() -> str | None:
    """Why this machine cannot have such lines, or None."""
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"a lab with distance needs the device /dev/net/tun: {error.strerror}"
    if shutil.which("c++") is None:
        return "a lab with distance compiles a program: apt-get install g++"
    return None


def program() -> Path:
    """The compiled wire program, which is made unless it was made from the same source before."""
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in _SOURCES)).hexdigest()[:12]
    made = _BUILD / f"wire-{digest}"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        own = made.with_suffix(f".{os.getpid()}")
        command = ["c++", "-O2", "-std=c++20", "-Wall", "-Wextra", "-o", str(own), str(_SOURCES[0])]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise LabError(f"{_SOURCES[0].name} did not compile:\n{done.stderr.strip()}")
        own.rename(made)
    return made
