"""Dumps as PyTorch's flight-recorder analyser reads them: one pickle per rank.

The entries have PyTorch's keys already. What changes:

- The analyser knows a fixed list of backends by name, without q7x2: entries are called
  ``gloo:all_reduce``.
- Sequence numbers count the calls of users. Those that q7x2 makes to prepare them are left out, and
  numbers begin at the oldest call that all dumps still hold.
- Point-to-point messages are left out: the analyser would take them for collectives of all ranks.
"""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

_BACKEND = "gloo"
PREFIX = "rank_"


def write(dumps: list[dict[str, Any]], directory: pathlib.Path) -> list[pathlib.Path]:
    """Write one file per rank, ``rank_0`` and so on, into ``directory``, which is made.

    If several processes have the same rank, the one with the newest dump counts.
    """
    newest: dict[int, dict[str, Any]] = {}
    for dump in sorted(dumps, key=lambda dump: int(dump["q7x2"]["time_ns"])):
        newest[dump["q7x2"]["rank"]] = dump
    names = _short_names(list(newest.values()))
    first = _first_sequences(list(newest.values()))
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for rank, dump in sorted(newest.items()):
        path = directory / f"{PREFIX}{rank}"
        path.write_bytes(pickle.dumps(_trace(dump, names, first)))
        written.append(path)
    return written


def _short_names(dumps: list[dict[str, Any]]) -> dict[str, str]:
    """The key of a group is its name, unless another group had the same."""
    keys: dict[str, set[str]] = {}
    for dump in dumps:
        for key, config in dump["pg_config"].items():
            keys.setdefault(config["name"], set()).add(key)
    return {key: name if len(same) == 1 else key for name, same in keys.items() for key in same}


def _first_sequences(dumps: list[dict[str, Any]]) -> dict[str, int]:
    """By group: the oldest collective that no dump has lost."""
    first: dict[str, int] = {}
    for dump in dumps:
        seen: set[str] = set()
        for entry in dump["entries"]:
            key = entry["process_group"][0]
            if not entry["is_p2p"] and key not in seen:
                seen.add(key)
                first[key] = max(first.get(key, 0), entry["collective_seq_id"])
    return first


def _trace(dump: dict[str, Any], names: dict[str, str], first: dict[str, int]) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    calls: dict[str, int] = {}
    for entry in dump["entries"]:
        key, description = entry["process_group"]
        if entry["is_p2p"] or entry["q7x2"].get("internal"):
            continue
        if entry["collective_seq_id"] < first[key]:
            continue
        calls[key] = calls.get(key, 0) + 1
        entries.append(
            {
                **{name: value for name, value in entry.items() if name != "q7x2"},
                "record_id": len(entries),
                "process_group": (names[key], description),
                "collective_seq_id": calls[key],
                "op_id": calls[key],
                "profiling_name": entry["profiling_name"].replace("q7x2:", f"{_BACKEND}:"),
            }
        )
    return {
        "version": dump["version"],
        "pg_config": {names[key]: config for key, config in dump["pg_config"].items()},
        "pg_status": dump["pg_status"],
        "comm_lib_version": f"q7x2 {dump['q7x2']['version']}",
        "entries": entries,
    }
