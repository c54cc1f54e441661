"""A rank's flight record in a few lines, for the report of a failed test."""

from __future__ import annotations

import json
from typing import Any


def flight_lines(record: str, count: int = 10) -> list[str]:
    """Return one line for each of the last ``count`` operations, the oldest first.

    Args:
        record: what ``q7x2.dump`` writes.
        count: the number of operations. Those that q7x2 makes for itself are shown only if they
            have not ended well.
    """
    dump = json.loads(record)
    now = dump["q7x2"]["time_ns"]
    entries = [
        entry
        for entry in dump["entries"]
        if not entry["q7x2"].get("internal") or entry["q7x2"]["state"] != "done"
    ]
    names = {group["key"]: group["name"] for group in dump["q7x2"]["groups"]}
    kept = entries[-count:]
    lines = [_line(entry, names, now) for entry in kept]
    if len(entries) > len(kept):
        lines.insert(0, f"({len(entries) - len(kept)} earlier operations)")
    for group in dump["q7x2"]["groups"]:
        if failure := group.get("failure"):
            lines.append(f"group {group['name']} failed, {failure['code']}: {failure['text']}")
    return lines or ["no operation"]


def _line(entry: dict[str, Any], names: dict[str, str], now: int) -> str:
    details = entry["q7x2"]
    number = entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]
    name = entry["profiling_name"].removeprefix("q7x2:")
    parts = [f"#{number} {name}", f"{details['bytes']} B"]
    parts += [details[key] for key in ("dtype", "reduce", "plan") if details.get(key)]
    if len(names) > 1:
        key = entry["process_group"][0]
        parts.append(f"in {names.get(key, key)}")
    state = details["state"]
    if details.get("finished_ns"):
        took = (details["finished_ns"] - entry["time_created_ns"]) * 1e-6
        parts.append(f"{state} in {took:.1f} ms")
    else:
        took = (now - entry["time_created_ns"]) * 1e-9
        parts.append(f"{state}, for {took:.1f} s")
    if state != "done" and details.get("slices"):
        done, total = details["slices"]
        parts.append(f"slice {done} of {total}")
    waits = [f"{wait['rank']} ({wait['for']})" for wait in details.get("waits", [])]
    if waits:
        parts.append(f"waits for rank {', '.join(waits[:6])}")
    return " ".join(parts)
