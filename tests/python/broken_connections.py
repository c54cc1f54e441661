"""Connections of this process that are reset, and calls that notice it."""

from __future__ import annotations

import ctypes
import os
import pathlib
import socket

import torch
import torch.distributed as dist


def reset_connections() -> int:
    """Resets the TCP connections of this process to others, but not those of the store."""
    libc = ctypes.CDLL(None, use_errno=True)
    store_port = int(os.environ.get("STORE_PORT", "0"))
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not str(pathlib.Path("/proc/self/fd", name).readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family != socket.AF_INET or connection.type != socket.SOCK_STREAM:
                    continue
                ports = (connection.getsockname()[1], connection.getpeername()[1])
                if store_port not in ports:
                    # Connecting to nowhere ends an established connection with a reset.
                    nowhere = ctypes.create_string_buffer(16)
                    count += libc.connect(connection.fileno(), nowhere, 16) == 0
        except OSError:
            pass  # closed in the meantime, or not connected
    return count


def reduce_for_ever(group: dist.ProcessGroup) -> None:
    """Call all-reduces of the group until one raises."""
    while True:
        dist.all_reduce(torch.ones(1000), group=group)
