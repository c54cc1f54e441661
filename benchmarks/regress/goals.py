"""The figures q7x2 must reach. A new figure is a new row of BARS; `bars.py` measures them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from q7x2._core.units import parse_size

from benchmarks.harness import report
from benchmarks.harness.backends import EMPTY, OPENMPI
from benchmarks.harness.startup import PHASES
from tests.lab import UNSHAPED, Link, Topology

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
CCUBE_PHASES = {"subject": "q7x2:ccube", "against_op": "reduce_then_broadcast"}
CCUBE_FIRST = {"op": "first_piece", "subject": "q7x2:ccube"}
AUTO_RACKS: dict[str, Any] = {
    "interleaved": True,
    "fixed": ("ring", "halving_doubling", "ccube", "hierarchical", "blink"),
    "blocks": 2,
}
AUTO_LINKS = {"fixed": ("ring", "aggregator", "ccube", "hierarchical", "blink"), "blocks": 2}
RESELECT = f"{SUBJECT}+topk:0.01:reselect"
BALANCED = {"op": "all_reduce_clustered", "subject": f"{RESELECT}:balanced", "blocks": 3}
FILLED = {"op": "all_reduce_normal", "subject": f"{SUBJECT}+topk:0.6", "blocks": 3}


def _all_reduce(
    name: str,
    size: str,
    ranks: int,
    against: str,
    ratio: float,
    topology: Topology | None = None,
    **more: Any,
) -> Bar:
    """An all-reduce of one size."""
    op = more.pop("op", "all_reduce")
    return Bar(name, op, (size,), ranks, against, ratio, topology=topology, **more)


def _crowded(name: str, topology: Topology) -> tuple[Bar, ...]:
    """Several ranks on each host; also neighbour ranks on different hosts, and a codec."""
    slow_edges = {"op": "all_reduce_normal", "subject": f"{SUBJECT}+int8@slow"}
    return (
        _all_reduce(name, "16M", 8, "gloo", 1.0, topology),
        _all_reduce(f"{name}-line", "16M", 8, LINE_RATE, 0.944, topology),
        _all_reduce(f"{name}-interleaved", "16M", 8, BLOCK_ORDER, 0.91, topology, interleaved=True),
        _all_reduce(f"{name}-int8", "16M", 8, SUBJECT, 3.0, topology, **slow_edges),
    )


def _fast_links(rate: str) -> tuple[Bar, ...]:
    shared = {"run_sizes": tuple(FAST_GOALS), "bound": True}
    topology = Topology(hosts=2, rate=rate)
    return tuple(
        _all_reduce(f"network-2-{rate}-{size}", size, 2, "gloo", goal, topology, **shared)
        for size, goal in FAST_GOALS.items()
    )


def _with_codecs(topology: Topology, goal: int, blocks: int) -> tuple[Bar, ...]:
    """`goal`: which of the goals of each codec is that of this topology."""
    shared = {"op": "all_reduce_normal", "blocks": blocks}
    shared["together"] = tuple(f"{SUBJECT}+{codec}" for codec in CODED)
    return tuple(
        _all_reduce(
            *(f"{codec}-{topology.rate}", "100M", 4, "gloo", goals[goal], topology),
            **{**shared, "subject": f"{SUBJECT}+{codec}"},
        )
        for codec, goals in CODED.items()
    )


def _top_k(topology: Topology) -> Bar:
    options = {"op": "all_reduce_normal", "subject": f"{SUBJECT}+topk:0.01", "blocks": 2}
    return _all_reduce(f"topk-{topology.rate}", "100M", 4, "gloo", 15.0, topology, **options)


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
    _all_reduce("network-4", "16M", 4, "gloo", 1.0, FOUR_HOSTS),
    _all_reduce("network-4-line", "16M", 4, LINE_RATE, 0.95, FOUR_HOSTS),
    *(bar for rate in FAST_RATES for bar in _fast_links(rate)),
    _all_reduce("network-2-unshaped", "64M", 2, IPERF, 0.9, UNSHAPED_LINK, bound=True),
    _all_reduce("racks", "16M", 8, "gloo", 1.7, TWO_RACKS, blocks=3),
    _all_reduce("racks-interleaved", "16M", 8, "gloo", 6.0, TWO_RACKS, interleaved=True, blocks=3),
    _all_reduce("links", "16M", 4, "gloo", 6.0, PRIVATE_LINKS, blocks=3),
    *_crowded("hosts-2x4", Topology(hosts=2, rate="1gbit")),
    *_crowded("hosts-4x2", FOUR_HOSTS),
    _all_reduce("packing", "16M", 4, BEST_FIXED, 1.3, UNEVEN_LINKS, fixed=NOT_PACKING, blocks=3),
    _all_reduce("ccube-overlap", "16M", 4, "q7x2:ccube", 1.7, FOUR_HOSTS, **CCUBE_PHASES),
    _all_reduce("ccube-first", "16M", 4, "gloo", 1 / 0.3, FOUR_HOSTS, **CCUBE_FIRST),
    Bar("auto-2", "all_reduce", AUTO_SIZES, 2, BEST_FIXED, 0.95, **MANY_TURNS),
    Bar("auto-4-on-2", "all_reduce", AUTO_SIZES, 4, BEST_FIXED, 0.95, cores=2, **MANY_TURNS),
    *(Bar(f"auto-{op}-4", op, ("1M",), 4, BEST_FIXED, 0.95, **MANY_TURNS) for op in MOVES),
    Bar(
        *("auto-network-4", "all_reduce", (*SMALL_SIZES, "1M", "16M"), 4, BEST_FIXED, 0.95),
        topology=FOUR_HOSTS,
        blocks=11,
        block_seconds=0.03,
    ),
    _all_reduce("auto-racks", "16M", 8, BEST_FIXED, 0.95, TWO_RACKS, **AUTO_RACKS),
    _all_reduce("auto-links", "16M", 4, BEST_FIXED, 0.95, PRIVATE_LINKS, **AUTO_LINKS),
    *_with_codecs(SLOW_HOSTS, goal=0, blocks=2),
    *_with_codecs(FOUR_HOSTS, goal=1, blocks=3),
    *(_top_k(topology) for topology in (SLOW_HOSTS, FOUR_HOSTS)),
    _all_reduce("balanced-100mbit", "16M", 4, RESELECT, 1.5, SLOW_HOSTS, **BALANCED),
    _all_reduce("fill-60-1gbit", "100M", 4, SUBJECT, 0.95, FOUR_HOSTS, **FILLED),
)
