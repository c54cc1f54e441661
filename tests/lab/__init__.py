"""The virtual-host lab: several hosts with shaped links between them, on one Linux machine."""

from tests.lab.hosts import Hosts, LabRun, Traffic
from tests.lab.lab import Lab
from tests.lab.namespaces import LabError, unavailable
from tests.lab.topology import UNSHAPED, Link, Topology
from tests.lab.wide import WideLab, WideTopology
from tests.lab.wire import Counts, Line, Wire

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
