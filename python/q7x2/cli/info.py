"""``q7x2 info``: what is installed and found here, and what is missing for RDMA or CUDA."""

from __future__ import annotations

import argparse
import json
import platform
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from q7x2.fabric.show import counted, memory_size

if TYPE_CHECKING:
    from rich.table import Table

# UCX transports by what they need, as `ucx_info -d` names them.
_RDMA_TRANSPORTS = ("rc", "ud", "dc", "srd", "gga")
_SHARED_MEMORY_TRANSPORTS = ("posix", "sysv", "cma", "knem", "xpmem")


def add_parser(commands: Any) -> None:
    """Add ``info`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "info", help="show versions, UCX transports, topology, CUDA, and what is missing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a report")
    parser.add_argument(
        "--peers",
        action="store_true",
        help="instead, as every rank of a torchrun: measure how each two hosts are connected",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.peers:
        from q7x2.cli import peers

        return peers.run(as_json=options.json)
    facts = collect()
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        _print_report(facts)
    return 1 if "error" in facts else 0


def collect() -> dict[str, Any]:
    """All facts as plain data: what ``q7x2 info --json`` prints.

    The keys ``build``, ``ucx``, ``host`` and ``cuda`` are there only if q7x2's compiled module
    loads; otherwise ``error`` says why it does not. ``missing`` lists what to do about RDMA, CUDA
    and shared memory, in sentences.
    """
    import torch

    import q7x2

    facts: dict[str, Any] = {
        "q7x2": q7x2.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": {"version": torch.__version__, "cuda": torch.version.cuda},
    }
    try:
        facts |= _native_facts()
    except (ImportError, RuntimeError) as error:
        facts["error"] = str(error)
        facts["missing"] = []
    else:
        facts["missing"] = missing(facts)
    return facts


def _native_facts() -> dict[str, Any]:
    from q7x2._core import ucx
    from q7x2._core.extension import load

    native = load()
    ucx = native.ucx_info() | {"origin": ucx.load().origin}
    return {
        "build": native.build_info(),
        "ucx": ucx,
        "host": native.host_info(),
        "cuda": native.cuda_info(),
    }


def _transports(facts: dict[str, Any]) -> dict[str, list[str]]:
    """UCX's resources grouped by transport: {"tcp": ["lo", "eth0"]}."""
    devices: dict[str, list[str]] = defaultdict(list)
    for resource in facts["ucx"]["resources"]:
        transport, _, device = resource.partition("/")
        devices[transport].append(device)
    return dict(devices)


def _has(transports: Iterable[str], names: tuple[str, ...]) -> bool:
    return any(transport.split("_")[0] in names for transport in transports)


def missing(facts: dict[str, Any]) -> list[str]:
    """What RDMA, CUDA or shared memory lack on the machine of ``facts``; one sentence each."""
    transports = _transports(facts)
    sentences = []
    if not _has(transports, _SHARED_MEMORY_TRANSPORTS):
        sentences.append(
            "Shared memory: this UCX offers no shared-memory transport here, so ranks of one host "
            "talk over TCP. Check UCX_TLS and that /dev/shm is mounted and writable."
        )
    return sentences + _missing_rdma(facts, transports) + _missing_cuda(facts, transports)


def _missing_rdma(facts: dict[str, Any], transports: dict[str, list[str]]) -> list[str]:
    adapters = ", ".join(device["name"] for device in facts["host"]["rdma_devices"])
    if _has(transports, _RDMA_TRANSPORTS):
        return []
    if not adapters:
        return [
            "RDMA: this host has no RDMA adapter (no OpenFabrics device is visible to hwloc); "
            "other hosts are reached over TCP."
        ]
    if facts["ucx"]["origin"] == "wheel":
        return [
            f"RDMA: this host has {adapters}, but the UCX of the libucx wheel is built without "
            f"verbs. Install a UCX with RDMA and choose it: Q7X2_UCX=system, or "
            f"Q7X2_UCX=<directory with libucp.so.0>."
        ]
    return [
        f"RDMA: this host has {adapters}, but UCX at {facts['ucx']['library']} offers no RDMA "
        f"transport. Check UCX_TLS and UCX_NET_DEVICES, the rights on /dev/infiniband, and that "
        f"UCX's verbs modules are installed (libuct_ib)."
    ]


def _missing_cuda(facts: dict[str, Any], transports: dict[str, list[str]]) -> list[str]:
    sentences = []
    gpus = [gpu["name"] or gpu["pci_bus_id"] for gpu in facts["host"]["gpus"]]
    cuda = facts["cuda"]
    if not cuda["built"]:
        sentences.append(
            "CUDA: q7x2 was built without CUDA. Build it where nvcc is on PATH, with "
            "-C cmake.define.Q7X2_CUDA=ON."
        )
    elif cuda["problem"]:
        hint = f" Install the NVIDIA driver for {', '.join(gpus)}." if gpus else ""
        sentences.append(f"CUDA: {cuda['problem']}.{hint}")
    if facts["torch"]["cuda"] is None:
        sentences.append(
            f"CUDA: torch {facts['torch']['version']} is a build without CUDA; install one with "
            f"CUDA to train on GPUs."
        )
    if cuda["devices"] and not _has(transports, ("cuda",)):
        sentences.append(
            "CUDA: this UCX offers no CUDA transport, so GPU memory is staged through the host. "
            "Choose a UCX built with CUDA, such as the libucx-cu13 wheel."
        )
    return sentences


def _rows(facts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The report's lines: section, what, value."""
    torch_cuda = facts["torch"]["cuda"]
    rows = [
        ("q7x2", "version", facts["q7x2"]),
        ("", "Python", facts["python"]),
        ("", "platform", facts["platform"]),
        ("torch", "version", facts["torch"]["version"]),
        ("", "CUDA build", torch_cuda or "no"),
    ]
    if "error" in facts:
        return rows
    build, ucx, host, cuda = (facts[key] for key in ("build", "ucx", "host", "cuda"))
    rows[3:3] = [
        ("", "compiler", build["compiler"]),
        ("", "built against", f"torch {build['torch_version']}, UCX {build['ucx_headers']}"),
    ]
    rows += [
        ("UCX", "version", f"{ucx['version']} ({ucx['origin']})"),
        ("", "library", ucx["library"]),
    ]
    rows += [
        ("", transport, ", ".join(devices)) for transport, devices in _transports(facts).items()
    ]
    rows += _host_rows(host, build["hwloc"])
    rows += [
        ("CUDA", "toolkit built with", build["cuda"] or "none"),
        ("", "driver", cuda["driver"] or "none"),
    ]
    rows += [
        (
            "",
            device["pci_bus_id"],
            f"{device['name']}, compute capability {device['compute_capability']}, "
            f"{memory_size(device['memory_bytes'])}",
        )
        for device in cuda["devices"]
    ]
    return rows


def _host_rows(host: dict[str, Any], hwloc_version: str) -> list[tuple[str, str, str]]:
    rows = [
        ("host", "name", host["hostname"]),
        ("", "processor", host["cpu_model"] or "unknown"),
        (
            "",
            "topology",
            f"{counted(host['packages'], 'package')}, {counted(host['numa_nodes'], 'NUMA node')}, "
            f"{counted(host['cores'], 'core')}, "
            f"{counted(host['hardware_threads'], 'hardware thread')}, "
            f"{host['usable_cpus']} usable (hwloc {hwloc_version})",
        ),
        ("", "memory", memory_size(host["memory_bytes"])),
    ]
    for interface in host["network_interfaces"]:
        speed = interface["megabits_per_second"]
        parts = [
            "up" if interface["up"] else "down",
            f"{speed} Mbit/s" if speed else "",
            _numa(interface["numa_node"]),
            " ".join(interface["addresses"]),
        ]
        rows.append(("", interface["name"], ", ".join(part for part in parts if part)))
    for kind, devices in (("RDMA", host["rdma_devices"]), ("GPU", host["gpus"])):
        for device in devices:
            parts = [device["name"], device["pci_bus_id"], _numa(device["numa_node"])]
            rows.append(("", kind, ", ".join(part for part in parts if part)))
    return rows


def _numa(node: int) -> str:
    return f"NUMA node {node}" if node >= 0 else ""


def _table(rows: list[tuple[str, str, str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for section, what, value in rows:
        table.add_row(Text(section), Text(what), Text(value))
    return table


def _print_report(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(_table(_rows(facts)))
    if "error" in facts:
        # In one piece: it may have a command to copy.
        error = Text(f"q7x2 cannot be used: {facts['error']}", style="bold red")
        console.print(error, soft_wrap=True)
        return
    if not facts["missing"]:
        console.print(Text("RDMA and CUDA are both available.", style="green"))
        return
    console.print(Text("Not available here", style="bold"))
    for sentence in facts["missing"]:
        lines = textwrap.wrap(sentence, max(console.width - 4, 20), break_on_hyphens=False)
        console.print(Text("  - " + "\n    ".join(lines)))
