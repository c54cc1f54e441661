"""Where torch.distributed leaves out backends that are installed beside it, or is led astray.

- In ``"cpu:gloo"`` and all other names with devices, torch looks for an installed backend as soon
  as there is any, finds none because it compares ``"Q7X2"`` with ``"gloo"`` and ``"q7x2"``, and the
  group has no default backend. It has one again if this backend is hidden there.
- A group whose backends are all of this package needs it as the default backend, also if its name
  has devices, or if torch chose the backend by the device.
- ``_set_pg_timeout`` knows Gloo and NCCL only.

Groups without this backend are made, and get timeouts, as if it were not installed.
"""

from __future__ import annotations

import functools
from collections.abc import KeysView
from datetime import timedelta
from typing import Any

_NAME = "q7x2"


class Plugins(dict[str, Any]):
    """The installed backends, by their names. :meth:`keys` leaves this one out.

    Only the choice of a default backend asks for ``keys``.
    """

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # a dict has its own type
        return dict.fromkeys(name for name in self if name != _NAME.upper()).keys()


def teach_torch() -> None:
    """Make torch.distributed know this backend. A second call has no effect."""
    from torch.distributed import distributed_c10d as c10d

    if isinstance(c10d.Backend._plugins, Plugins):
        return
    if type(c10d.Backend._plugins) is dict:
        c10d.Backend._plugins = Plugins(c10d.Backend._plugins)
    c10d._new_process_group_helper = _with_default(c10d._new_process_group_helper)
    c10d._set_pg_timeout = _with_timeout(c10d._set_pg_timeout)


def _with_default(make: Any) -> Any:
    @functools.wraps(make)
    def made(*args: Any, **options: Any) -> Any:
        import torch.distributed as dist

        group, store = make(*args, **options)
        if _backends_of(group) == {_NAME}:
            group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        return group, store

    return made


def _with_timeout(set_timeout: Any) -> Any:
    @functools.wraps(set_timeout)
    def with_timeout(timeout: timedelta, group: Any = None) -> None:
        import torch.distributed as dist

        its: Any = dist.group.WORLD if group is None else group
        if _NAME in _backends_of(its):
            its.set_timeout(timeout)
        else:
            set_timeout(timeout, group)

    return with_timeout


def _backends_of(group: Any) -> set[str]:
    """The names of a group's backends; empty for what is no group of torch.distributed."""
    from torch.distributed import distributed_c10d as c10d

    config: str = c10d._world.pg_backend_config.get(group, "")
    return {each.rpartition(":")[2] for each in config.split(",")} - {""}
