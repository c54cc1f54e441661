"""What is wrong with the CPU binding of the ranks in a Fabric, and the command that mends it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from q7x2._core.units import ranks_text


def advice(fabric: dict[str, Any]) -> list[str]:
    """One paragraph per problem of ``fabric``, as ``fabric.load`` returns it.

    The list is empty if all is well, or if nobody knows where the ranks are bound.
    """
    bindings = fabric.get("bindings", [])
    paragraphs: list[str] = []
    for index, host in enumerate(fabric["hosts"]):
        ranks = [rank for rank, place in enumerate(fabric["ranks"]) if place == index]
        if bindings and all(bindings[rank]["cpus"] for rank in ranks):
            paragraphs += _of_host(host, {rank: bindings[rank] for rank in ranks})
    return paragraphs


def cpus_of(text: str) -> set[int]:
    """The hardware threads of a list: ``cpus_of("0-2,7")`` is ``{0, 1, 2, 7}``."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _of_host(host: dict[str, Any], bindings: dict[int, dict[str, Any]]) -> list[str]:
    nodes = host["hardware"]["numa_nodes"]
    unbound = [rank for rank, binding in bindings.items() if binding["numa_node"] < 0]
    if nodes > 1 and unbound:
        return [
            f"{_some(unbound, bindings, host)} not bound to one of its {nodes} NUMA nodes. "
            f"Bind each rank to a node:\n  {_node_command(host, len(bindings))}"
        ]
    paragraphs = [paragraph for paragraph in (_sharing(host, bindings),) if paragraph]
    nic = _node_of_nics(host)
    if nic >= 0 and nodes > 1 and all(each["numa_node"] != nic for each in bindings.values()):
        paragraphs.append(
            f"No rank of host {host['name']} is bound to NUMA node {nic}, where its NIC is. "
            f"Bind the first rank there:\n  {_numactl(str(nic))}"
        )
    return paragraphs


def _some(ranks: list[int], bindings: dict[int, Any], host: dict[str, Any]) -> str:
    verb = "is" if len(ranks) == 1 else "are"
    return (
        f"{len(ranks)} of {len(bindings)} ranks of host {host['name']} ({ranks_text(ranks)}) {verb}"
    )


def _sharing(host: dict[str, Any], bindings: dict[int, dict[str, Any]]) -> str:
    """Ranks that compete for cores though there are enough, or because there are too few."""
    sets = {rank: cpus_of(binding["cpus"]) for rank, binding in bindings.items()}
    every = sorted(set().union(*sets.values()))
    threads = host["hardware"]["threads"]
    if len(bindings) > len(every):
        few = f"The {len(bindings)} ranks of host {host['name']} share {_threads(len(every))}."
        if threads > len(every):
            return f"{few} It has {threads}: start them with a wider affinity mask."
        return f"{few} Start fewer ranks on it."
    if all(cpus == set(every) for cpus in sets.values()):
        return ""  # none is bound, and the kernel has a core for each
    users = Counter(cpu for cpus in sets.values() for cpu in cpus)
    sharing = [rank for rank, cpus in sets.items() if any(users[cpu] > 1 for cpu in cpus)]
    if not sharing:
        return ""
    shares = [
        every[i * len(every) // len(sets) : (i + 1) * len(every) // len(sets)]
        for i in range(len(sets))
    ]
    commands = "".join(
        f"\n  rank {rank}: taskset -c {ranks_text(share).replace(', ', ',')} python train.py"
        for rank, share in zip(sets, shares, strict=True)
    )
    return (
        f"{_some(sharing, bindings, host)} bound to hardware threads that another rank uses too. "
        f"Give each rank its own:{commands}"
    )


def _threads(count: int) -> str:
    return f"{count} hardware thread" + ("s" if count > 1 else "")


def _node_of_nics(host: dict[str, Any]) -> int:
    """The NUMA node of all NICs whose node is known; -1 if there is none, or more than one."""
    hardware = host["hardware"]
    nodes = {nic["numa_node"] for nic in (*hardware["nics"], *hardware["rdma"])} - {-1}
    return nodes.pop() if len(nodes) == 1 else -1


def _node_command(host: dict[str, Any], ranks: int) -> str:
    if len(host["hardware"]["gpus"]) >= ranks:
        return f"torchrun --numa-binding=node --nproc-per-node={ranks} train.py"
    node = f"$((LOCAL_RANK * {host['hardware']['numa_nodes']} / {ranks}))"
    command = _numactl(node, quoted=True)
    return f"torchrun --nproc-per-node={ranks} --no-python bash -c 'exec {command}'"


def _numactl(node: str, *, quoted: bool = False) -> str:
    node = f'"{node}"' if quoted else node
    return f"numactl --cpunodebind={node} --preferred={node} python train.py"
