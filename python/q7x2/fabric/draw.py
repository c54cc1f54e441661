"""A Fabric as a picture: racks and hosts with their rates, and the rates between all pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from q7x2.fabric.files import FabricError
from q7x2.fabric.show import hosts_and_servers, rank_text_of, rate

INK, MUTED, FRAME = "#1b1f24", "#6e7781", "#d0d7de"
HOST, CABLE, WIRE = "#e7f5f8", "#0b7285", "#e8590c"


def draw(fabric: dict[str, Any], path: Path) -> None:
    """Draw ``fabric``, as ``fabric.load`` returns it, into a ``.svg`` or ``.png`` file.

    Raises FabricError without matplotlib, if its settings are wrong, for other kinds of files, and
    where writing is refused.
    """
    if path.suffix not in (".svg", ".png"):
        raise FabricError(f"a picture is a .svg or .png file; got {path}")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise FabricError("drawing needs matplotlib: pip install 'q7x2[draw]'") from None
    except ValueError as error:  # such as a backend in MPLBACKEND that does not exist
        raise FabricError(f"matplotlib refuses its settings: {error}") from None

    measured = any(pair["rate"] for pair in fabric["pairs"])
    racks = [_hosts_of(fabric, rack) for rack in range(len(fabric["racks"]))]
    places = sum(map(len, racks)) + len(racks) - 1
    width = max(4.0, 1.35 * places)
    with mpl.rc_context({"font.size": 10, "text.color": INK, "svg.fonttype": "none"}):
        figure = Figure(
            figsize=(width + (4.6 if measured else 0), 4.2), dpi=160, layout="constrained"
        )
        if measured:
            network, matrix = figure.subplots(1, 2, width_ratios=(width, 4.2))
            _draw_matrix(matrix, fabric)
        else:
            network = figure.subplots()
        _draw_network(network, fabric, racks)
        try:
            figure.savefig(path)
        except OSError as error:
            raise FabricError(f"cannot write {path}: {error}") from None


def _hosts_of(fabric: dict[str, Any], rack: int) -> list[int]:
    every = enumerate(hosts_and_servers(fabric))
    return [index for index, host in every if host["rack"] == rack]


def _draw_network(axes: Any, fabric: dict[str, Any], racks: list[list[int]]) -> None:
    from matplotlib.patches import FancyBboxPatch

    switch, core, x = 1.35, 2.3, 0.0
    place: dict[int, float] = {}
    middles = []
    for hosts in racks:
        for host in hosts:
            place[host] = x
            x += 1
        middles.append((place[hosts[0]] + place[hosts[-1]]) / 2)
        x += 1
    for number, (hosts, middle) in enumerate(zip(racks, middles, strict=True)):
        left, right = place[hosts[0]] - 0.15, place[hosts[-1]] + 0.15
        axes.plot((left, right), (switch, switch), color=INK, linewidth=5, solid_capstyle="round")
        if len(racks) > 1:
            cable = fabric["racks"][number]
            axes.plot((middle, middle), (switch, core), color=CABLE, linewidth=2)
            label = f"{rate(cable['up'])} up\n{rate(cable['down'])} down"
            axes.annotate(label, (middle + 0.08, (switch + core) / 2), va="center", color=CABLE)
        for host in hosts:
            facts = hosts_and_servers(fabric)[host]
            axes.plot((place[host],) * 2, (0.5, switch), color=MUTED, linewidth=1.5, zorder=0)
            box = FancyBboxPatch(
                (place[host] - 0.36, -0.25),
                0.72,
                0.75,
                boxstyle="round,pad=0.04",
                facecolor=HOST,
                edgecolor=FRAME,
            )
            axes.add_patch(box)
            axes.text(place[host], 0.32, facts["name"], ha="center", weight="bold")
            axes.text(place[host], 0.08, rank_text_of(fabric, host), ha="center", fontsize=8)
            axes.text(place[host], -0.14, f"{facts['cores']} CPUs", ha="center", fontsize=8)
            if facts["egress"]:
                nic = f"{rate(facts['egress'])}\n{rate(facts['ingress'])}"
                axes.text(place[host] + 0.05, 0.92, nic, va="center", fontsize=7.5, color=MUTED)
    if len(racks) > 1:
        axes.plot(
            (middles[0], middles[-1]), (core, core), color=INK, linewidth=5, solid_capstyle="round"
        )
    for link in fabric["links"]:
        _draw_link(axes, place[link["a"]], place[link["b"]], rate(link["rate"]))
    axes.set_xlim(-0.6, x - 1.4)
    axes.set_ylim(-0.4 - 0.3 * bool(fabric["links"]) * len(place) ** 0.5, core + 0.2)
    axes.set_axis_off()
    axes.set_title("out of and into each host", loc="left", color=MUTED, fontsize=9)


def _draw_link(axes: Any, a: float, b: float, label: str) -> None:
    from matplotlib.patches import FancyArrowPatch

    left, right = sorted((a, b))
    axes.add_patch(
        FancyArrowPatch(
            (left, -0.29),
            (right, -0.29),
            connectionstyle="arc3,rad=0.3",
            arrowstyle="-",
            color=WIRE,
            linewidth=1.5,
        )
    )
    axes.text(
        (a + b) / 2,
        -0.32 - 0.15 * (right - left),
        label,
        ha="center",
        va="top",
        fontsize=8,
        color=WIRE,
    )


def _draw_matrix(axes: Any, fabric: dict[str, Any]) -> None:
    hosts = fabric["hosts"]
    count = len(hosts)
    order = sorted(range(count), key=lambda host: int(hosts[host]["rack"]))
    position = {host: at for at, host in enumerate(order)}
    rates = [[float("nan")] * count for _ in range(count)]
    for pair in fabric["pairs"]:
        rates[position[pair["from"]]][position[pair["to"]]] = 8e-6 * pair["rate"]
    image = axes.imshow(rates, cmap="viridis", vmin=0)
    names = [hosts[host]["name"] for host in order]
    axes.set_xticks(range(count), names, rotation=90 if count > 8 else 0)
    axes.set_yticks(range(count), names)
    axes.set_xlabel("to")
    axes.set_ylabel("from")
    axes.set_title("Mbit/s while all talk in pairs", loc="left", color=MUTED, fontsize=9)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
