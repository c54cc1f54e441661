"""The tests of q7x2, and what judges it: faults, diagnoses, GPUs, and the virtual-host lab."""
