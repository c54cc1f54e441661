"""The virtual-host lab: several hosts with shaped links between them, on one Linux machine."""

from benchmarks.harness.lab.lab import Lab, LabRun, Traffic
from benchmarks.harness.lab.namespaces import LabError, unavailable
from benchmarks.harness.lab.topology import UNSHAPED, Link, Topology

__all__ = ["UNSHAPED", "Lab", "LabError", "LabRun", "Link", "Topology", "Traffic", "unavailable"]
