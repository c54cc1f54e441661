"""The virtual-host lab: several hosts with shaped links between them, on one Linux machine."""

from benchmarks.harness.lab.hosts import Hosts, LabRun, Traffic
from benchmarks.harness.lab.lab import Lab
from benchmarks.harness.lab.namespaces import LabError, unavailable
from benchmarks.harness.lab.topology import UNSHAPED, Link, Topology
from benchmarks.harness.lab.wide import WideLab, WideTopology
from benchmarks.harness.lab.wire import Counts, Line, Wire

__all__ = [
    "UNSHAPED",
    "Counts",
    "Hosts",
    "Lab",
    "LabError",
    "LabRun",
    "Line",
    "Link",
    "Topology",
    "Traffic",
    "WideLab",
    "WideTopology",
    "Wire",
    "unavailable",
]
