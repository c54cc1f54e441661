"""Dumps of the flight recorder, read from files and put together by group."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from q7x2._core.json_values import parse


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of one rank. Times are seconds by the clock of its host; None: not yet."""

    kind: str  # "all_reduce", ..., "send", "recv"
    sequence: int
    state: str  # "submitted", "started", "done", "failed"
    is_internal: bool
    text: str  # "all_reduce of 4096 bytes of float32"
    fingerprint: str
    peer: int  # the other rank of a message; -1: any rank
    tag: int
    submitted: float
    finished: float | None
    progressed: float | None
    timeout: float
    waits: list[dict[str, Any]]

    @property
    def is_message(self) -> bool:
        return self.kind in ("send", "recv")


@dataclasses.dataclass(frozen=True)
class Failure:
    """What ended a group on one rank. ``rank`` (in the group) caused it; -1: nobody is known."""

    code: str
    rank: int
    text: str
    at: float


@dataclasses.dataclass(frozen=True)
class RankView:
    """What one rank's dump says about a group."""

    taken: float
    failure: Failure | None
    operations: list[Operation]
    is_complete: bool  # the ring has lost no operation


@dataclasses.dataclass
class Group:
    """A group, and what the dumps of its ranks say. Ranks are those in the group."""

    name: str
    members: list[dict[str, Any]]  # by rank: rank (in the job), process, pid, host
    views: dict[int, RankView] = dataclasses.field(default_factory=dict)

    def describe(self, rank: int) -> str:
        """``rank 5 (pid 41 on a)``, by the rank in the job."""
        member = self.members[rank]
        return f"rank {member['rank']} (pid {member['pid']} on {member['host']})"

    def names(self, ranks: list[int]) -> str:
        """``rank 5`` or ``ranks 0-2, 7``, by the ranks in the job."""
        from q7x2._core.units import ranks_text

        job = sorted(self.members[rank]["rank"] for rank in ranks)
        return ("rank " if len(job) == 1 else "ranks ") + ranks_text(job)


def read(directory: pathlib.Path) -> list[dict[str, Any]]:
    """The newest dump of each process, by rank.

    Raises OSError where the directory cannot be read, and ValueError, which names the file, for
    a file that is no dump. Other files than ``*.json`` are left alone.
    """
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.iterdir()):
        if path.suffix != ".json" or not path.is_file():
            continue
        dump = _load(path)
        known = newest.get(dump["q7x2"]["process"])
        if known is None or known["q7x2"]["time_ns"] < dump["q7x2"]["time_ns"]:
            newest[dump["q7x2"]["process"]] = dump
    if not newest:
        raise ValueError(f"{directory}: there is no dump here (q7x2-rank*.json)")
    return sorted(newest.values(), key=lambda dump: (dump["q7x2"]["rank"], dump["q7x2"]["time_ns"]))


def groups(dumps: list[dict[str, Any]]) -> list[Group]:
    """The groups that the dumps tell of."""
    found: dict[str, Group] = {}
    for dump in dumps:
        process = dump["q7x2"]
        by_key: dict[str, list[Operation]] = {}
        for entry in dump["entries"]:
            by_key.setdefault(entry["process_group"][0], []).append(_operation(entry))
        for record in process["groups"]:
            group = found.setdefault(record["key"], Group(record["name"], record["members"]))
            group.views[record["rank"]] = RankView(
                taken=process["time_ns"] * 1e-9,
                failure=_failure(record.get("failure")),
                operations=by_key.get(record["key"], []),
                is_complete=process["recorded"] <= process["capacity"],
            )
    return list(found.values())


def _load(path: pathlib.Path) -> dict[str, Any]:
    try:
        dump: dict[str, Any] = parse(path.read_bytes())
        process = dump["q7x2"]
        for key in ("rank", "time_ns", "recorded", "capacity"):
            if not isinstance(process[key], int):
                raise TypeError(f"{key!r} is not an integer")
        if not isinstance(process["process"], str):
            raise TypeError("'process' is not a string")
        for entry in dump["entries"]:
            _operation(entry)
        for record in process["groups"]:
            members = record["members"]
            if not 0 <= record["rank"] < len(members):
                raise ValueError("a rank is not in its group")
            if not all({"rank", "pid", "host"} <= member.keys() for member in members):
                raise ValueError("a member has no rank, pid or host")
            _failure(record.get("failure"))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is no dump of q7x2's flight recorder: {error!r}") from error
    return dump


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds * 1e-9


def _operation(entry: dict[str, Any]) -> Operation:
    details = entry["q7x2"]
    kind = entry["profiling_name"].removeprefix("q7x2:").split(" ")[0]
    is_message = bool(entry["is_p2p"])
    return Operation(
        kind=kind,
        sequence=int(entry["p2p_seq_id" if is_message else "collective_seq_id"]),
        state=details["state"],
        is_internal=details.get("internal", False),
        text=_text(kind, details, is_message),
        fingerprint=details.get("fingerprint", ""),
        peer=details.get("peer", -1),
        tag=details.get("tag", 0),
        submitted=entry["time_created_ns"] * 1e-9,
        finished=_seconds(details["finished_ns"]),
        progressed=_seconds(details["progressed_ns"]),
        timeout=entry["timeout_ms"] * 1e-3,
        waits=[dict(wait, rank=int(wait["rank"])) for wait in details.get("waits", [])],
    )


def _text(kind: str, details: dict[str, Any], is_message: bool) -> str:
    if is_message:
        return f"message (tag {details['tag']}, {details['bytes']} bytes)"
    if kind == "barrier":
        return "barrier"
    text = f"{kind} of {details['bytes']} bytes"
    if "dtype" in details:
        text += f" of {details['dtype']}"
    if "reduce" in details:
        text += f", {details['reduce']}"
    if "root" in details:
        text += f", root {details['root']}"
    return text


def _failure(record: dict[str, Any] | None) -> Failure | None:
    if record is None:
        return None
    return Failure(
        str(record["code"]), int(record["rank"]), str(record["text"]), record["time_ns"] * 1e-9
    )
