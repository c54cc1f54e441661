"""The figures q7x2 must reach. A new figure is a new row of BARS; `bars.py` measures them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.arguments import parse_size
from benchmarks.harness.backends import EMPTY, OPENMPI
from benchmarks.harness.lab import UNSHAPED, Link, Topology
from benchmarks.harness.startup import PHASES

SUBJECT = "q7x2"
LINE_RATE = "line rate"
IPERF = "iperf3 --bidir"
BEST_FIXED = "best fixed"
BLOCK_ORDER = "block order"
# What the automatic choice is held against. Those that do not offer a collective are left out.
FIXED = {
    "all_reduce": (
        *("direct", "recursive_doubling", "halving_doubling", "binomial_tree"),
        *("double_binary_tree", "ccube", "sra", "ring", "multitree", "hierarchical", "blink"),
    ),
    "broadcast": ("direct", "binomial_tree", "double_binary_tree", "chain", "ccube"),
    "all_gather": ("direct", "ring", "halving_doubling", "multitree"),
    "reduce_scatter": ("sra", "ring", "halving_doubling", "multitree"),
    "all_to_all": ("direct", "pairwise"),
}


@dataclass(frozen=True)
class Bar:
    """One figure: `op` at each of `sizes` must be at least `ratio` times as fast as `against`.

    Attributes:
        op: a collective, or one of startup.PHASES, which has no sizes.
        against: a backend; LINE_RATE: how long each host's NIC is busy at least, which is what an
            all-reduce of one rank per host takes at best; IPERF: how long iperf3 needs for the same
            bytes, both ways at once, on the same virtual hosts; BEST_FIXED: the fastest of the
            algorithms in FIXED, each forced in the same group, which has made 50 calls before;
            BLOCK_ORDER: the same with consecutive ranks on each host.
        slack: instead of a ratio: seconds by which it may be slower.
        cores: the ranks share that many; 0 for all.
        topology: virtual hosts with equally many ranks each, or None for one host.
        interleaved: neighbour ranks sit on different hosts, in different racks if there are any.
        subject: the backend under test, where it is not the one of the command.
        against_op: what `against` runs, where it is not the same.
        fixed: instead of all in FIXED, where the slow ones would take too long.
        blocks, block_seconds: turns of each backend and their length, where the command's do not
            suit.
        together: subjects of several bars that are measured in one run, against the same.
        run_sizes: all sizes of the run that several bars share, each with some of them in `sizes`.
        bound: whether iperf3 measures what the same virtual hosts carry at most.
    """

    name: str
    op: str
    sizes: tuple[str, ...]
    ranks: int
    against: str
    ratio: float = 1.0
    slack: float | None = None
    cores: int = 0
    topology: Topology | None = None
    interleaved: bool = False
    subject: str | None = None
    against_op: str | None = None
    fixed: tuple[str, ...] | None = None
    blocks: int | None = None
    block_seconds: float | None = None
    together: tuple[str, ...] = ()
    run_sizes: tuple[str, ...] = ()
    bound: bool = False

    @property
    def what(self) -> str:
        if self.op in PHASES:
            return f"{self.op}, {self.ranks} ranks, one host"
        sizes = [report.size(parse_size(size)) for size in self.sizes]
        place = f"{self.ranks} ranks, one host"
        if self.topology:
            place = self.topology.describe()
            if self.ranks > self.topology.hosts:
                place = f"{self.ranks} ranks on {place}"
        if self.interleaved:
            place += ", ranks interleaved"
        span = sizes[0] if len(sizes) == 1 else f"{sizes[0]} ... {sizes[-1]}"
        return f"{self.op} {span}, {place}" + (f", {self.cores} cores" if self.cores else "")

    @property
    def goal(self) -> str:
        if self.slack is not None:
            return f"+{report.duration(self.slack)}"
        return f"{self.ratio:g}x"


FOUR_HOSTS = Topology(hosts=4, rate="1gbit")
TWO_RACKS = Topology(hosts=8, rate="200mbit", racks=2, uplink="50mbit")
PRIVATE_LINKS = Topology(
    hosts=4, rate="20mbit", links=tuple(Link(0, host, "100mbit") for host in (1, 2, 3))
)
UNSHAPED_LINK = Topology(hosts=2, rate=UNSHAPED)
SLOW_HOSTS = Topology(hosts=4, rate="100mbit")
# A private link between every two hosts, of six rates: no one tree uses more than three of them.
UNEVEN_LINKS = Topology(
    hosts=4,
    rate="50mbit",
    links=(
        *(Link(0, 1, "200mbit"), Link(1, 2, "150mbit"), Link(2, 3, "120mbit")),
        *(Link(0, 3, "100mbit"), Link(0, 2, "80mbit"), Link(1, 3, "60mbit")),
    ),
)
# All others that are offered there; a name that is not would leave the choice free.
NOT_PACKING = (
    *("direct", "recursive_doubling", "halving_doubling", "binomial_tree", "double_binary_tree"),
    *("ccube", "sra", "aggregator", "ring", "torus", "multitree"),
)
# By name: several ranks on each host.
CROWDED = {
    "hosts-2x4": Topology(hosts=2, rate="1gbit"),
    "hosts-4x2": FOUR_HOSTS,
}
FAST_RATES = ("2.5gbit", "5gbit", "10gbit", "25gbit")
# By size, how many times as fast as Gloo an all-reduce over each of these must be.
FAST_GOALS = {"64K": 4.0, "1M": 1.0, "16M": 1.0}
# What 100 MB with a codec must reach against dense Gloo, at 100 Mbit/s and at 1 Gbit/s.
CODED = {
    "fp16": (1.9, 1.8),
    "int8": (3.4, 3.2),
    "int4": (6.7, 5.5),
    "ternary": (11.0, 7.0),
    "onebit": (20.0, 8.0),
}
ALL_SIZES = ("4", "64", "1K", "16K", "256K", "1M", "4M", "16M")
SMALL_SIZES = ("4", "1K", "16K", "64K")
AUTO_SIZES = ("4", "1K", "64K", "1M", "16M")
# A difference of some percent shows in pairs of short turns: the machine has no time to change.
MANY_TURNS: dict[str, Any] = {"blocks": 40, "block_seconds": 0.02}
STARTS = {
    "start-32": "init_process_group",
    "start-32-first": "first_all_reduce",
    "start-32-further": "new_group",
}
MOVES = ("broadcast", "all_gather", "reduce_scatter", "all_to_all")

BARS = (
    Bar("latency-2", "all_reduce", ("4",), 2, "gloo", 18.0),
    Bar("floor-2", "all_reduce", ("4",), 2, EMPTY, slack=4e-6),
    Bar("latency-4-on-2", "all_reduce", ("1K",), 4, "gloo", 40.0, cores=2),
    Bar("medium-2-mpi", "all_reduce", ("64K",), 2, OPENMPI, 0.9),
    Bar("bandwidth-2", "all_reduce", ("16M",), 2, "gloo", 6.0),
    Bar("bandwidth-2-mpi", "all_reduce", ("16M",), 2, OPENMPI, 1.0),
    Bar("bandwidth-4-on-2", "all_reduce", ("16M",), 4, "gloo", 2.5, cores=2),
    Bar("bandwidth-4-on-2-mpi", "all_reduce", ("16M",), 4, OPENMPI, 1.0, cores=2),
    *(Bar(f"{op}-4", op, ("1M",), 4, "gloo", 3.0) for op in MOVES),
    *(Bar(f"{op}-4-all", op, ALL_SIZES, 4, "gloo", 1.0, blocks=5) for op in MOVES),
    *(Bar(name, phase, (), 32, "gloo", 1.0, blocks=5) for name, phase in STARTS.items()),
    Bar("network-4-small", "all_reduce", SMALL_SIZES, 4, "gloo", 4.0, topology=FOUR_HOSTS),
    Bar("network-4", "all_reduce", ("16M",), 4, "gloo", 1.0, topology=FOUR_HOSTS),
    Bar("network-4-line", "all_reduce", ("16M",), 4, LINE_RATE, 0.95, topology=FOUR_HOSTS),
    *(
        Bar(
            *(f"network-2-{rate}-{size}", "all_reduce", (size,), 2, "gloo", goal),
            topology=Topology(hosts=2, rate=rate),
            run_sizes=tuple(FAST_GOALS),
            bound=True,
        )
        for rate in FAST_RATES
        for size, goal in FAST_GOALS.items()
    ),
    Bar(
        "network-2-unshaped",
        "all_reduce",
        ("64M",),
        2,
        IPERF,
        0.9,
        topology=UNSHAPED_LINK,
        bound=True,
    ),
    Bar("racks", "all_reduce", ("16M",), 8, "gloo", 1.7, topology=TWO_RACKS, blocks=3),
    Bar(
        *("racks-interleaved", "all_reduce", ("16M",), 8, "gloo", 6.0),
        topology=TWO_RACKS,
        interleaved=True,
        blocks=3,
    ),
    Bar("links", "all_reduce", ("16M",), 4, "gloo", 6.0, topology=PRIVATE_LINKS, blocks=3),
    *(
        bar
        for name, topology in CROWDED.items()
        for bar in (
            Bar(name, "all_reduce", ("16M",), 8, "gloo", 1.0, topology=topology),
            Bar(f"{name}-line", "all_reduce", ("16M",), 8, LINE_RATE, 0.944, topology=topology),
            Bar(
                *(f"{name}-interleaved", "all_reduce", ("16M",), 8, BLOCK_ORDER, 0.91),
                topology=topology,
                interleaved=True,
            ),
            Bar(
                *(f"{name}-int8", "all_reduce_normal", ("16M",), 8, SUBJECT, 3.0),
                topology=topology,
                subject=f"{SUBJECT}+int8@slow",
            ),
        )
    ),
    Bar(
        *("packing", "all_reduce", ("16M",), 4, BEST_FIXED, 1.3),
        topology=UNEVEN_LINKS,
        fixed=NOT_PACKING,
        blocks=3,
    ),
    Bar(
        *("ccube-overlap", "all_reduce", ("16M",), 4, "q7x2:ccube", 1.7),
        topology=FOUR_HOSTS,
        subject="q7x2:ccube",
        against_op="reduce_then_broadcast",
    ),
    Bar(
        *("ccube-first", "first_piece", ("16M",), 4, "gloo", 1 / 0.3),
        topology=FOUR_HOSTS,
        subject="q7x2:ccube",
    ),
    Bar("auto-2", "all_reduce", AUTO_SIZES, 2, BEST_FIXED, 0.95, **MANY_TURNS),
    Bar("auto-4-on-2", "all_reduce", AUTO_SIZES, 4, BEST_FIXED, 0.95, cores=2, **MANY_TURNS),
    *(Bar(f"auto-{op}-4", op, ("1M",), 4, BEST_FIXED, 0.95, **MANY_TURNS) for op in MOVES),
    Bar(
        *("auto-network-4", "all_reduce", (*SMALL_SIZES, "1M", "16M"), 4, BEST_FIXED, 0.95),
        topology=FOUR_HOSTS,
        blocks=11,
        block_seconds=0.03,
    ),
    Bar(
        *("auto-racks", "all_reduce", ("16M",), 8, BEST_FIXED, 0.95),
        topology=TWO_RACKS,
        interleaved=True,
        fixed=("ring", "halving_doubling", "ccube", "hierarchical", "blink"),
        blocks=2,
    ),
    Bar(
        *("auto-links", "all_reduce", ("16M",), 4, BEST_FIXED, 0.95),
        topology=PRIVATE_LINKS,
        fixed=("ring", "aggregator", "ccube", "hierarchical", "blink"),
        blocks=2,
    ),
    *(
        Bar(
            *(f"{codec}-{topology.rate}", "all_reduce_normal", ("100M",), 4, "gloo", goals[i]),
            topology=topology,
            subject=f"{SUBJECT}+{codec}",
            blocks=3 if i else 2,
            together=tuple(f"{SUBJECT}+{each}" for each in CODED),
        )
        for i, topology in enumerate((SLOW_HOSTS, FOUR_HOSTS))
        for codec, goals in CODED.items()
    ),
    *(
        Bar(
            *(f"topk-{topology.rate}", "all_reduce_normal", ("100M",), 4, "gloo", 15.0),
            topology=topology,
            subject=f"{SUBJECT}+topk:0.01",
            blocks=2,
        )
        for topology in (SLOW_HOSTS, FOUR_HOSTS)
    ),
    Bar(
        "balanced-100mbit",
        "all_reduce_clustered",
        ("16M",),
        4,
        f"{SUBJECT}+topk:0.01:reselect",
        1.5,
        topology=SLOW_HOSTS,
        subject=f"{SUBJECT}+topk:0.01:reselect:balanced",
        blocks=3,
    ),
    Bar(
        *("fill-60-1gbit", "all_reduce_normal", ("100M",), 4, SUBJECT, 0.95),
        topology=FOUR_HOSTS,
        subject=f"{SUBJECT}+topk:0.6",
        blocks=3,
    ),
)
