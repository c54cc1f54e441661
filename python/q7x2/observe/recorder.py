"""``flight_recorder`` and ``dump``: what the operations of this process did."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from q7x2._core.private_files import replace


def flight_recorder() -> list[dict[str, Any]]:
    """Return the last operations of this process, the oldest first.

    >>> for entry in q7x2.flight_recorder()[-3:]:
    ...     print(entry["profiling_name"], entry["q7x2"]["state"])

    It is not a collective call. The recorder keeps the last 2,000 operations of all groups;
    the environment variable ``Q7X2_FLIGHT_RECORDER`` changes that number, and 0 turns it off.

    Returns:
        One dict per operation, with the keys of PyTorch's flight recorder. Times are nanoseconds
        since 1970. The dict ``entry["q7x2"]`` has what PyTorch has no key for:

        - ``state``: ``"submitted"``, ``"started"``, ``"done"`` or ``"failed"``.
        - ``bytes``: the larger one of input and output.
        - collectives: ``plan`` (the algorithm, empty until one is chosen), ``slices``
          (``[done, total]``), ``fingerprint`` (equal on all ranks that made the same call),
          ``dtype`` and ``reduce`` of reductions, ``root``, and ``internal`` where q7x2 itself
          made the call to prepare the next one.
        - messages: ``peer`` and ``tag``.
        - ``progressed_ns``, ``finished_ns``: when it last sent or received something, and when it
          ended; None if it did not.
        - ``waits``, of an operation that failed or is in progress: the messages it waits for. Each
          has ``rank`` (in the group), ``for`` (``"receive"`` or ``"send"``) and ``via``.

        When all groups are destroyed, it still has what the last ones did, until a new group is
        made. The list is empty if this process has had no q7x2 group.
    """
    taken = snapshot("flight_recorder() was called")
    entries: list[dict[str, Any]] = taken["entries"] if taken else []
    return entries


def snapshot(reason: str) -> dict[str, Any] | None:
    """What :func:`dump` writes, and why it was taken; None if this process has had no q7x2 group.

    ``["q7x2"]["time_ns"]`` and ``["q7x2"]["steady_ns"]`` are one moment, on the clock of the time
    of day and on that of ``time.monotonic_ns()``.
    """
    text = _json(reason)
    taken: dict[str, Any] | None = json.loads(text) if text else None
    return taken


def dump(path: str | os.PathLike[str]) -> None:
    """Write the flight recorder of this process to the file ``path``, as JSON.

    ``q7x2 blame DIRECTORY`` reads such files of all ranks; give them names that end in ``.json``.
    The file appears under its name when it is complete. It is not a collective call. It may come
    after ``destroy_process_group``.

    Args:
        path: The file. It is replaced if it exists.

    Raises:
        RuntimeError: This process has had no q7x2 group.
        OSError: The file cannot be written.
    """
    text = _json("dump() was called")
    if text is None:
        raise RuntimeError("this process has had no q7x2 group, so there is nothing to dump")
    replace(pathlib.Path(path), text.encode())


def _json(reason: str) -> str | None:
    from q7x2._core.extension import load

    text: str | None = load().flight_json(reason)
    return text
