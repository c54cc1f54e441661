"""The compiled module. Load it with ``q7x2._extension.load``, which loads UCX in front of it."""

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend

class Options(Backend.Options):
    """Settings of one q7x2 process group, passed as ``pg_options``."""

    def __init__(self, timeout: timedelta = ...) -> None: ...

class ProcessGroupQ7x2(Backend):
    """The q7x2 backend of one process group."""

    @property
    def options(self) -> Options: ...
    def monitored_barrier(self, timeout: timedelta, wait_all_ranks: bool) -> None: ...

def create_backend(dist_backend_opts: Any, options: Options | None) -> ProcessGroupQ7x2: ...
def build_info() -> dict[str, Any]:
    """What the module was compiled with: q7x2, compiler, torch, UCX headers, hwloc, CUDA."""

def ucx_info() -> dict[str, Any]:
    """The UCX that was loaded (version, library) and its resources, "transport/device"."""

def host_info() -> dict[str, Any]:
    """This host's topology, memory, network interfaces and devices."""

def cuda_info() -> dict[str, Any]:
    """The CUDA driver and devices, or the problem that hides them."""
