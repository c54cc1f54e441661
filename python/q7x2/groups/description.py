"""``describe``: what a group is made of, and what it has decided so far."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclasses.dataclass(frozen=True)
class Description:
    """A group, as :func:`describe` found it. ``print`` shows it as text."""

    name: str
    """What error messages call the group."""
    rank: int
    """This process's rank in the group."""
    world_size: int
    """The number of ranks."""
    hosts: list[dict[str, Any]]
    """``host``, ``ranks`` (in the group) and ``pids`` of each, the host of rank 0 first."""
    peers: list[dict[str, Any]]
    """The way to each other rank, by rank.

    - ``rank``, ``same_host``
    - ``path``: ``"shared memory"``, ``"private link"``, ``"many connections"`` or ``"UCX"``.
    - ``transports``: UCX's, for example ``["tcp"]``; empty before the first use, and where
      the path is many connections.
    - ``memory_refusal``: why a rank of this host shares no memory with this one; else empty.
    - ``has_private_link``: there is one, whether it is used or not.
    - ``connections``: open TCP connections. UCX's are those to all ranks of that host.
    - ``round_trip``: the shortest that TCP has measured, in seconds; 0: not known.
    - ``sent_again``: share of the packets that were sent more than once.
    - ``encrypted``: whether they use TLS.
    """
    servers: list[dict[str, Any]]
    """Each server of the group: ``name``, ``host``, ``pid``, ``serves`` (False once the group goes
    on without it), ``calls``, which all of them together have served, and ``declined``, calls for
    which they had no memory."""
    transports: list[str]
    """UCX's, those that this process may use."""
    algorithms_allowed: str
    """What ``Q7X2_ALGO``, ``Options.algorithms`` and ``Q7X2_PLAN`` leave; empty: all."""
    algorithms: list[dict[str, Any]]
    """Per kind of call so far: ``collective``, ``root``, ``codec``, ``direct`` (from device to
    device), ``bytes`` (the largest size of the kind, or None), ``calls``, and ``algorithms``, which
    the next calls take in turns."""
    device_paths: list[dict[str, Any]]
    """How the calls and messages with tensors on a device passed so far. Each has ``path``,
    ``calls``, and the bytes copied ``to_host`` and ``to_device``. Paths without calls are left out.

    - ``"staged"``: tensors passed through pinned host memory.
    - ``"coded"``: the device encoded and decoded, and only messages passed.
    - ``"direct"``: UCX moved them from device to device, and nothing passed.

    What torch copies for q7x2 is not counted: for codecs that add integers, sparse tensors, and
    several tensors per rank.
    """
    timeout: float
    """The timeout of an operation, in seconds."""
    flight_recorder: int
    """How many operations are remembered."""
    error: str | None
    """What ended the group; None: it is open."""

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def describe(group: ProcessGroup | None = None) -> Description:
    """Tell which hosts a group has, how its ranks talk, and which algorithms its calls take.

    >>> print(q7x2.describe())

    It is not a collective call. What is said of other ranks is as this rank sees it.

    Args:
        group: The process group, with q7x2 as a backend. The default group if None.

    Returns:
        A :class:`Description`, whose fields are plain values. ``str()`` of it is a text for people.

    Raises:
        TypeError: ``group`` is no process group.
        ValueError: The group has no q7x2 backend.
    """
    from q7x2._core.extension import load
    from q7x2._core.groups import backend_of
    from q7x2.plan.history import plan_history

    facts = load().describe_group(backend_of(group, "describe"))
    members = facts["members"]
    return Description(
        name=facts["name"],
        rank=facts["rank"],
        world_size=facts["world_size"],
        hosts=[
            {
                "host": members[ranks[0]]["host"],
                "ranks": ranks,
                "pids": [members[rank]["pid"] for rank in ranks],
            }
            for ranks in facts["hosts"]
        ],
        peers=[_peer(peer) for peer in facts["peers"]],
        servers=facts["servers"],
        transports=facts["transports"],
        algorithms_allowed=facts["algorithms_allowed"],
        algorithms=[_choice(kind) for kind in plan_history(group)],
        device_paths=[
            {"path": way, **facts[way]}
            for way in ("staged", "coded", "direct")
            if facts[way]["calls"]
        ],
        timeout=facts["timeout"],
        flight_recorder=facts["flight_recorder"],
        error=facts["error"],
    )


def _peer(peer: dict[str, Any]) -> dict[str, Any]:
    if peer["shares_memory"]:
        path = "shared memory"
    elif peer["uses_private_link"]:
        path = "private link"
    else:
        path = "many connections" if peer["uses_streams"] else "UCX"
    kept = ["rank", "same_host", "transports", "memory_refusal", "has_private_link"]
    kept += ["connections", "round_trip", "sent_again"]
    return {"path": path, **{key: peer[key] for key in kept}, "encrypted": peer["is_encrypted"]}


def _choice(kind: dict[str, Any]) -> dict[str, Any]:
    kept = ("collective", "root", "codec", "direct", "bytes", "calls")
    events = kind["events"]
    names = events[-1]["choices"] if events else [kind["candidates"][0]["algorithm"]]
    return {**{key: kind[key] for key in kept}, "algorithms": names}


def _lines(description: Description) -> list[str]:
    from q7x2._core.units import ranks_text

    hosts = description.hosts
    lines = [
        f"group '{description.name}': rank {description.rank} of {description.world_size}, on "
        f"{len(hosts)} host{'s' if len(hosts) > 1 else ''}"
    ]
    if description.error is not None:
        lines.append(f"  failed: {description.error}")
    for host in hosts:
        many = len(host["ranks"]) > 1
        pids = ", ".join(str(pid) for pid in host["pids"])
        lines.append(
            f"  {host['host']}: rank{'s' if many else ''} {ranks_text(host['ranks'])} "
            f"(pid{'s' if many else ''} {pids})"
        )
    lines += [
        f"  {server['host']}: server '{server['name']}' (pid {server['pid']})"
        + ("" if server["serves"] else ", does not serve any more")
        + f", {server['calls']} calls were served"
        + (f", {server['declined']} declined" if server["declined"] else "")
        for server in description.servers
    ]
    for ranks, text in _ways(description):
        lines.append(f"  to rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}: {text}")
    lines.append(f"  UCX may use {', '.join(description.transports)}")
    if description.algorithms_allowed:
        lines.append(f"  only these algorithms: {description.algorithms_allowed}")
    lines += [f"  {_choice_text(kind)}" for kind in description.algorithms]
    lines += [
        f"  on devices, {way['path']}: {way['calls']} calls, {way['to_host']} bytes to the host, "
        f"{way['to_device']} bytes to the device"
        for way in description.device_paths
    ]
    lines.append(
        f"  timeout {description.timeout:g} s, flight recorder of "
        f"{description.flight_recorder} operations"
    )
    return lines


def _ways(description: Description) -> list[tuple[list[int], str]]:
    """Ranks that are reached alike, and how."""
    ways: dict[str, list[int]] = {}
    for peer in description.peers:
        text = peer["path"]
        if peer["transports"]:
            text += f" (UCX: {', '.join(peer['transports'])})"
        elif peer["path"] == "UCX":
            text += ", not connected yet"
        if peer["memory_refusal"]:
            text += f", no shared memory: {peer['memory_refusal']}"
        if peer["has_private_link"] and peer["path"] != "private link":
            text += ", a private link is not used"
        ways.setdefault(text, []).append(peer["rank"])
    return [(ranks, text) for text, ranks in ways.items()]


def _choice_text(kind: dict[str, Any]) -> str:
    text = str(kind["collective"])
    if kind["root"] >= 0:
        text += f" with root {kind['root']}"
    if kind["codec"]:
        text += f" as {kind['codec']}"
    if kind["direct"]:
        text += " between devices"
    if kind["bytes"] is None:
        text += " of parts that differ"
    elif kind["collective"] != "barrier":
        text += f" up to {kind['bytes']} bytes"
    return f"{text}: {', '.join(kind['algorithms'])} ({kind['calls']} calls)"
