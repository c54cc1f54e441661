"""``add_to_trace``: what q7x2 did, inside the trace that ``torch.profiler`` has exported.

A profiler sees only the threads that it was started in, and q7x2 works in threads of its own. So
what the hook and the flight recorder have noted is added afterwards. Each bucket has a track, with
the phases of the hook, its collectives, and the operations of each collective. The recorder knows
how long an operation encoded, decoded, and so on, but not when: these phases are drawn in a fixed
order.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from q7x2.hooks.attached import Attached, HookEvent
from q7x2.observe.recorder import snapshot

_FIRST_TRACK = 1 << 23  # above the numbers of all threads
_COLLECTIVE = "collective"  # the name of such an event of a hook
_PHASES = ("select", "encode", "copy", "wire", "reduce", "decode")


def add_to_trace(path: str | os.PathLike[str], hook: Attached | None = None) -> int:
    """Add to a Chrome trace of ``torch.profiler`` what q7x2 did in this process meanwhile.

    >>> hook.trace()
    >>> with torch.profiler.profile() as profiler:
    ...     train_one_step()
    >>> profiler.export_chrome_trace("step.json")
    >>> q7x2.observe.add_to_trace("step.json", hook)

    With a hook each bucket is a track, named ``q7x2 bucket 0`` and so on. Without one, and for
    calls that belong to no bucket, there is a track per process group. Below an operation lie its
    phases: ``encode``, ``copy``, ``wire`` (it waits for messages), ``reduce`` and ``decode``.

    Args:
        path: The file that ``export_chrome_trace`` wrote, ``.json`` or ``.json.gz``. It is
            replaced.
        hook: What :func:`attach` returned. Its events are taken (:meth:`Attached.take_events`).

    Returns:
        The number of operations that were added.

    Raises:
        RuntimeError: There is no q7x2 group in this process.
        OSError: The file cannot be read or written.
        ValueError: The file is not a trace of ``torch.profiler``, or the hook has recorded nothing
            because :meth:`Attached.trace` was not called.
    """
    file = pathlib.Path(path)
    trace = _read(file)
    base = int(trace["baseTimeNanoseconds"])
    spans = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    if not spans:
        raise ValueError(f"{file} has no events")
    begin = min(event["ts"] for event in spans) * 1e3
    end = max(event["ts"] + event.get("dur", 0) for event in spans) * 1e3
    recorder = snapshot("add_to_trace() was called")
    if recorder is None:
        raise RuntimeError("this process has had no q7x2 group, so there is nothing to add")
    # All times are made of steady ones with one offset, so that they keep their order.
    now = recorder["q7x2"]
    events = _hook_events(hook, now["time_ns"] - now["steady_ns"] - base, begin, end)
    slices = [_slice_of(event) for event in events]
    count = len(slices)
    for entry in recorder["entries"]:
        submitted, finished = entry["time_created_ns"], entry["q7x2"]["finished_ns"]
        if finished is not None and finished - base >= begin and submitted - base <= end:
            slices.append(_operation(entry, base, events))
    tracks = _Tracks()
    for each in sorted(slices, key=lambda each: (each.begin, -each.end)):
        tracks.add(each)
    trace["traceEvents"] += tracks.events()
    _write(file, trace)
    return len(slices) - count


@dataclasses.dataclass
class _Slice:
    """Something that took time; nanoseconds since the trace's own zero, ``baseTimeNanoseconds``.

    Since 1970 they would not fit into a float. ``phases``: how many nanoseconds each took.
    """

    track: str
    name: str
    begin: float
    end: float
    arguments: dict[str, Any]
    phases: dict[str, float] = dataclasses.field(default_factory=dict)


def _hook_events(hook: Attached | None, zero: int, begin: float, end: float) -> list[HookEvent]:
    """By their begin, with times as in a :class:`_Slice`; ``zero`` is that of the steady clock."""
    if hook is None:
        return []
    events = hook.take_events()
    if not events:
        raise ValueError("the hook has recorded nothing: call hook.trace() before the step")
    moved = [
        dataclasses.replace(each, begin=zero + each.begin * 1e9, end=zero + each.end * 1e9)
        for each in events
    ]
    inside = [each for each in moved if each.end >= begin and each.begin <= end]
    return sorted(inside, key=lambda each: each.begin)


def _slice_of(event: HookEvent) -> _Slice:
    name = event.name if event.name != _COLLECTIVE else f"{_COLLECTIVE} (lane {event.lane})"
    arguments = {"step": event.step, "bucket": event.bucket}
    return _Slice(f"q7x2 bucket {event.bucket}", name, event.begin, event.end, arguments)


def _operation(entry: dict[str, Any], base: int, events: Sequence[HookEvent]) -> _Slice:
    own = entry["q7x2"]
    begin, end = float(entry["time_created_ns"] - base), float(own["finished_ns"] - base)
    track = f"q7x2 group {entry['process_group'][0].partition('@')[0]}"
    if around := _collective_at(begin, events):
        track = f"q7x2 bucket {around.bucket}"
    kept = ("plan", "dtype", "bytes", "predicted_ns", "sent", "received", "waited_most")
    arguments = {key: own[key] for key in kept if own.get(key) is not None}
    phases = own.get("work_ns", {}) | {"wire": own.get("waited_ns") or 0}
    return _Slice(track, entry["profiling_name"], begin, end, arguments, phases)


def _collective_at(begin: float, events: Sequence[HookEvent]) -> HookEvent | None:
    """The one that began last before ``begin``: a hook starts its collectives one at a time."""
    begun = [e for e in events if e.name == _COLLECTIVE and e.begin <= begin]
    return begun[-1] if begun and begin <= begun[-1].end else None


class _Tracks:
    """Events by track. An event that overlaps another one without lying inside it moves on."""

    def __init__(self) -> None:
        self._open: dict[str, list[list[float]]] = {}  # by name: ends of what is open, per track
        self._numbers: dict[tuple[str, int], int] = {}
        self._events: list[dict[str, Any]] = []

    def add(self, each: _Slice) -> None:
        """They come in the order of their begin; of equal ones the longer one comes first."""
        tracks = self._open.setdefault(each.track, [])
        for ends in tracks:
            while ends and ends[-1] <= each.begin:
                ends.pop()
        free = (i for i, ends in enumerate(tracks) if not ends or each.end <= ends[-1])
        index = next(free, len(tracks))
        if index == len(tracks):
            tracks.append([])
        tracks[index].append(each.end)
        key = (each.track, index)
        number = self._numbers.setdefault(key, _FIRST_TRACK + len(self._numbers))
        self._add(number, each.name, each.begin, each.end, each.arguments)
        total = sum(each.phases.values())
        scale = min(1.0, (each.end - each.begin) / total) if total else 1.0
        at = each.begin
        for phase in _PHASES:
            if taken := each.phases.get(phase, 0):
                self._add(number, phase, at, at + taken * scale, {"ns": taken})
                at += taken * scale

    def _add(
        self, track: int, name: str, begin: float, end: float, arguments: dict[str, Any]
    ) -> None:
        self._events.append(
            {
                "ph": "X",
                "cat": "q7x2",
                "name": name,
                "pid": os.getpid(),
                "tid": track,
                "ts": begin * 1e-3,
                "dur": (end - begin) * 1e-3,
                "args": arguments,
            }
        )

    def events(self) -> Iterator[dict[str, Any]]:
        """Everything, with the names of the tracks."""
        for (where, index), number in self._numbers.items():
            title = where + (f" ({index + 1})" if index else "")
            place = {"ph": "M", "pid": os.getpid(), "tid": number}
            yield {**place, "name": "thread_name", "args": {"name": title}}
            yield {**place, "name": "thread_sort_index", "args": {"sort_index": number}}
        yield from self._events


def _read(file: pathlib.Path) -> dict[str, Any]:
    data = file.read_bytes()
    try:
        trace = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    except (ValueError, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} is no Chrome trace: {error}") from None
    if not isinstance(trace, dict) or not {"traceEvents", "baseTimeNanoseconds"} <= trace.keys():
        raise ValueError(f"{file} is no trace that torch.profiler has exported")
    return trace


def _write(file: pathlib.Path, trace: dict[str, Any]) -> None:
    data = json.dumps(trace).encode()
    beside = file.with_name(f"{file.name}.part{os.getpid()}")
    try:
        beside.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
        beside.replace(file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
