"""The virtual-host lab: several hosts with shaped links between them, on one Linux machine."""

from benchmarks.lab.lab import Lab, LabRun, Traffic
from benchmarks.lab.namespaces import LabError, unavailable
from benchmarks.lab.topology import UNSHAPED, Link, Topology

__all__ = ["UNSHAPED", "Lab", "LabError", "LabRun", "Link", "Topology", "Traffic", "unavailable"]
