"""How long each TCP connection of this process was busy sending, as the kernel counts it.

A connection is busy while it has sent bytes that are not acknowledged. On a slow link that is
almost all the time of an operation, and on fast links of the same ring a small part, although all
ranks of the ring wait equally long. Time in which the receiver had no room does not count.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct

# Fields of struct tcp_info in linux/tcp.h: tcpi_busy_time, tcpi_rwnd_limited (microseconds).
_BUSY = struct.Struct("=QQ")
_BUSY_OFFSET = 168
_INFO_BYTES = _BUSY_OFFSET + _BUSY.size
_FDS = "/proc/self/fd"


def busy_us() -> dict[str, int]:
    """Microseconds by ``"<local address> <peer's address>"``, over all open connections.

    Connections of this host with itself are left out, and so is what an old kernel does not count.
    """
    found: dict[str, int] = {}
    for name in os.listdir(_FDS):
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                _add(found, connection)
    return found


def _add(found: dict[str, int], connection: socket.socket) -> None:
    is_internet = connection.family in (socket.AF_INET, socket.AF_INET6)
    if not is_internet or connection.type != socket.SOCK_STREAM:
        return
    local, peer = connection.getsockname()[0], connection.getpeername()[0]
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if local == peer or len(info) < _INFO_BYTES:
        return
    busy, blocked = _BUSY.unpack_from(info, _BUSY_OFFSET)
    key = f"{local} {peer}"
    found[key] = found.get(key, 0) + max(busy - blocked, 0)
