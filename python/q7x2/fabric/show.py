"""A Fabric for a person: a tree of racks, hosts and devices, and a table of the links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from q7x2._core.units import ranks_text, time_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree


# Characters of a node's text, beside the tree, on a terminal of 80 columns.
_LINE = 66


def rate(bytes_per_second: float) -> str:
    """As links are sold: ``rate(1.25e8)`` is ``"1 Gbit/s"``; nothing known is ``"-"``."""
    bits = 8 * bytes_per_second
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return "-"


def memory_rate(bytes_per_second: float) -> str:
    """``memory_rate(1.2e10)`` is ``"12 GB/s"``."""
    return f"{bytes_per_second / 1e9:.3g} GB/s"


def _spread(part: float) -> str:
    return f"±{50 * part:.0f} %" if part else ""


def hosts_and_servers(fabric: dict[str, Any]) -> list[dict[str, Any]]:
    """The hosts of the ranks, then those of the servers."""
    return [*fabric["hosts"], *fabric.get("servers", [])]


def rank_text_of(fabric: dict[str, Any], host: int) -> str:
    """The ranks on the host of that number: ``"ranks 0-3"``; ``"server"`` after the hosts."""
    if host >= len(fabric["hosts"]):
        return "server"
    ranks = [rank for rank, place in enumerate(fabric["ranks"]) if place == host]
    return ("ranks " if len(ranks) > 1 else "rank ") + ranks_text(ranks)


def show(fabric: dict[str, Any], console: Console | None = None) -> None:
    """Print ``fabric``, as ``fabric.load`` returns it, to ``console`` (standard output)."""
    from rich.console import Console

    from q7x2.fabric.binding_advice import advice

    console = console or Console()
    console.print(_tree(fabric))
    console.print(_costs(fabric))
    if fabric["pairs"]:
        console.print(_pairs(fabric))
    for paragraph in advice(fabric):
        console.print(paragraph, markup=False, highlight=False, soft_wrap=True)


def short_names(fabric: dict[str, Any]) -> list[str]:
    """The names of the hosts, without the domain if all of them have the same one."""
    names: list[str] = [host["name"] for host in fabric["hosts"]]
    domains = {name.partition(".")[2] for name in names}
    return [name.partition(".")[0] for name in names] if len(domains) == 1 else names


def counted(count: int, noun: str) -> str:
    """``counted(2, "core")`` is ``"2 cores"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def memory_size(count: int) -> str:
    """``memory_size(2**40)`` is ``"1 TiB"``."""
    size, unit = (count / 2**40, "TiB") if count >= 2**40 else (count / 2**30, "GiB")
    return f"{size:.3g} {unit}"


def _line(name: str, *details: str) -> Text:
    """A node of the tree. The details are on a line of their own if both need more than one."""
    from rich.text import Text

    listed = ", ".join(detail for detail in details if detail)
    text = Text(name, style="bold")
    text.append(("\n" if len(name) + len(listed) > _LINE else "  ") + listed, style="not bold")
    return text


def _tree(fabric: dict[str, Any]) -> Tree:
    from rich.tree import Tree

    made = fabric["made"]
    versions = [
        f"{name} {made[name]}"
        for name in ("q7x2", "ucx", "torch", "driver", "kernel")
        if made[name]
    ]
    measured = f"{made['time']}, in {time_text(made['seconds'])}" if made["seconds"] else ""
    tree = Tree(_line("fabric", made["source"], made["note"], measured))
    if versions:
        tree.add(", ".join(versions), style="dim")
    for number, rack in enumerate(fabric["racks"]):
        branch = tree
        if len(fabric["racks"]) > 1:
            cable = f"up {rate(rack['up'])}, down {rate(rack['down'])}"
            branch = tree.add(_line(rack["name"] or f"rack {number}", cable))
        for index, host in enumerate(hosts_and_servers(fabric)):
            if host["rack"] == number:
                _add_host(branch, host, rank_text_of(fabric, index), _nodes_of(fabric, index))
    return tree


def _nodes_of(fabric: dict[str, Any], host: int) -> str:
    """Which ranks of the host are bound to which NUMA node, if it has several."""
    if hosts_and_servers(fabric)[host]["hardware"]["numa_nodes"] < 2:
        return ""
    ranks_on: dict[int, list[int]] = {}
    for rank, binding in enumerate(fabric.get("bindings", [])):
        if fabric["ranks"][rank] == host and binding["numa_node"] >= 0:
            ranks_on.setdefault(binding["numa_node"], []).append(rank)
    return "; ".join(
        f"NUMA node {node}: ranks {ranks_text(ranks)}" for node, ranks in sorted(ranks_on.items())
    )


def _nic_rate(host: dict[str, Any]) -> str:
    if not host["egress"]:
        return ""
    if host["egress"] == host["ingress"]:
        return f"NIC {rate(host['egress'])}"
    return f"NIC out {rate(host['egress'])}, in {rate(host['ingress'])}"


def _add_host(branch: Tree, host: dict[str, Any], ranks: str, nodes: str) -> None:
    cpus = counted(host["cores"], "usable CPU")
    node = branch.add(_line(host["name"], ranks, nodes, cpus, _nic_rate(host)))
    for rates in host.get("rates", []):
        speeds = [
            f"{verb} {memory_rate(rates[key])}"
            for verb, key in (("copies", "copy"), ("adds", "reduce"))
            if rates[key]
        ]
        if speeds:
            node.add(_line(rates["device"], *speeds))
    hardware = host["hardware"]
    if hardware["threads"]:
        node.add(
            _line(
                hardware["cpu"] or "processor",
                counted(hardware["packages"], "package"),
                counted(hardware["numa_nodes"], "NUMA node"),
                counted(hardware["cores"], "core"),
                counted(hardware["threads"], "hardware thread"),
                memory_size(hardware["memory"]),
            )
        )
    for name, details in _devices(hardware):
        node.add(_line(name, *details))


def _devices(hardware: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Names and details, NUMA node by NUMA node."""
    devices = [(nic, ["NIC", " ".join(nic["addresses"])]) for nic in hardware["nics"]] + [
        (device, [kind, device["pci"]])
        for kind, key in (("RDMA", "rdma"), ("GPU", "gpus"))
        for device in hardware[key]
    ]
    for device, details in sorted(devices, key=lambda item: int(item[0]["numa_node"])):
        numa = device["numa_node"]
        yield device["name"], [*details, f"NUMA node {numa}" if numa >= 0 else ""]


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        is_name = column in ("link", "from", "to")
        table.add_column(
            column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold"
        )
    return table


def _costs(fabric: dict[str, Any]) -> Table:
    table = _table("link", "latency", "CPU a message", "rate", "")
    for name, key in (("inside a host", "memory"), ("between hosts", "network")):
        cost = fabric[key]
        table.add_row(
            name,
            time_text(cost["alpha"]),
            time_text(cost["overhead"]),
            memory_rate(fabric["copy_rate"]) if key == "memory" else "",
            "measured" if cost["measured"] else "assumed",
        )
    if fabric["burst"]:
        at_once = f"{fabric['burst'] / 1024:.0f} KiB at once"
        table.add_row("between hosts, after a pause", "", "", at_once, "measured")
    names = short_names(fabric)
    if any(binding["numa_node"] > 0 for binding in fabric.get("bindings", [])):
        between = fabric["interconnect"]
        table.add_row(
            "between NUMA nodes",
            time_text(fabric["memory"]["alpha"] * between["alpha_factor"]),
            time_text(fabric["memory"]["overhead"]),
            memory_rate(between["rate"]) if between["rate"] else "",
            "latency measured" if between["measured"] else "assumed",
        )
    for link in fabric["links"]:
        ends = f"{names[link['a']]} = {names[link['b']]} (private)"
        table.add_row(ends, time_text(link["alpha"]), "", rate(link["rate"]), "")
    table.add_row("one core adds", "", "", memory_rate(fabric["reduce_rate"]), "")
    return table


def _pairs(fabric: dict[str, Any]) -> Table:
    solo = any(pair["solo"] for pair in fabric["pairs"])
    bounded = any(pair.get("window") for pair in fabric["pairs"])
    more = [*(["alone"] if solo else []), *(["a connection"] if bounded else [])]
    table = _table("from", "to", "latency", "", "rate", "", *more)
    names = short_names(fabric)
    for pair in fabric["pairs"]:
        table.add_row(
            names[pair["from"]],
            names[pair["to"]],
            time_text(pair["alpha"]),
            _spread(pair["alpha_spread"]),
            rate(pair["rate"]),
            _spread(pair["rate_spread"]),
            *([rate(pair["solo"])] if solo else []),
            *([_connection(pair)] if bounded else []),
        )
    return table


def _connection(pair: dict[str, Any]) -> str:
    """How fast one connection is that does not fill its route: a window in each round trip."""
    window = pair.get("window", 0.0)
    return rate(window / (2 * pair["alpha"])) if window and pair["alpha"] else ""
