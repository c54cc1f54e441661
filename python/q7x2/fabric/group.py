"""The Fabric of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from q7x2.fabric.files import load

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def of_group(group: ProcessGroup | None = None) -> dict[str, Any]:
    """Return the Fabric of a group, with every field there; see docs/fabric.md.

    >>> Path("fabric.json").write_text(json.dumps(q7x2.fabric.of_group()))

    It is not a collective call. All ranks of the group get the same.

    Args:
        group: The process group, with q7x2 as a backend. The default group if None.

    Raises:
        TypeError: ``group`` is no process group.
        ValueError: The group has no q7x2 backend.
    """
    from q7x2._core.groups import backend_of

    return load(backend_of(group, "q7x2.fabric.of_group").fabric_json)
