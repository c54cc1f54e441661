"""The entry point that ``import torch`` runs: makes the name "q7x2" known to torch.distributed.

It registers a function, and wraps functions of torch.distributed. These wrappers
must exist before a user imports one of them by name, so they are here, and the rest of q7x2 is
loaded when the first group is made. An exception here would break ``import torch`` for every
program of the environment, so a failure is a warning now and an error when the backend is used.

Groups without this backend are made, and get timeouts, as if q7x2 were not installed. For the
others:

- **The default backend.** In ``"cpu:gloo"`` and all other names with devices, torch looks for an
  installed backend as soon as there is any, finds none because it compares ``"Q7X2"`` with
  ``"gloo"`` and ``"q7x2"``, and the group has no default backend. It has one again if this backend
  is hidden there. A group whose backends are all of this package needs it as the default backend,
  also if its name has devices, or if torch chose the backend by the device.
- **Timeouts.** ``_set_pg_timeout`` knows Gloo and NCCL only.
- **The store.** With ``env://`` and ``tcp://``, and without torchrun, rank 0 serves the store
  itself. torch's store then waits until every rank is connected, and says "2/3 clients joined" if
  one never comes: no rank learns which. The ranks of a q7x2 group wait for each other anyway, and
  name who is missing. So for such a group the store does not wait, and no rank counts itself there,
  which would take a round trip.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import KeysView
from contextvars import ContextVar
from datetime import timedelta
from importlib import import_module
from typing import Any

from q7x2._backend import create_backend  # now: a process without file descriptors imports nothing

_NAME = "q7x2"

_inherited_world: Any = None
"""In a forked child: the default process group that it has a copy of."""

_waits_itself: ContextVar[bool] = ContextVar("q7x2_waits_itself", default=False)
"""Whether the group that ``init_process_group`` makes has q7x2 for every device."""


def register() -> None:
    """Register the backend with torch.distributed unless it is registered already. Never raises."""
    try:
        import torch.distributed as dist

        if not dist.is_available():
            return  # a torch without c10d: the backend's users get torch's own error
        if "Q7X2" not in dist.Backend._plugins:
            dist.Backend.register_backend(
                _NAME, _create_backend, extended_api=True, devices=["cpu", "cuda"]
            )
            os.register_at_fork(after_in_child=_remember_world)
            _wrap_groups()
            _wrap_store()
    except Exception as error:
        warnings.warn(f"q7x2 could not register its backend: {error!r}", stacklevel=2)


def _create_backend(dist_backend_opts: Any, options: Any) -> Any:
    """Called by torch.distributed for each process group; the first call loads UCX and q7x2."""
    import torch.distributed as dist

    # Its store's connection is the parent's: whatever the child sends there confuses the parent.
    if dist.is_initialized() and dist.group.WORLD is _inherited_world:
        raise dist.DistBackendError(
            "the process group of the parent cannot be used in a forked child; call "
            "destroy_process_group() there, which leaves the parent's group alone, and then "
            "init_process_group() with a store of its own"
        )
    from q7x2._core.extension import load

    load()  # first: it reads the file that may hold the variable
    if os.environ.get("Q7X2_ATTACH"):
        from q7x2._attach_all import follow_models

        follow_models()
    return create_backend(dist_backend_opts, options, in_job=True)


def _remember_world() -> None:
    import torch.distributed as dist

    global _inherited_world
    _inherited_world = dist.group.WORLD


# ---- the default backend, and timeouts -----------------------------------------------------------


class Plugins(dict[str, Any]):
    """The installed backends, by their names. :meth:`keys` leaves this one out.

    Only the choice of a default backend asks for ``keys``.
    """

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # a dict has its own type
        return dict.fromkeys(name for name in self if name != _NAME.upper()).keys()


def _wrap_groups() -> None:
    """Wrap what makes groups and sets timeouts. A second call has no effect."""
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

    return _names_in(c10d._world.pg_backend_config.get(group, "")) - {""}


def _names_in(config: str) -> set[str]:
    """The backends of ``"gloo"`` or ``"cpu:gloo,cuda:nccl"``."""
    return {each.rpartition(":")[2] for each in config.split(",")}


# ---- the store -----------------------------------------------------------------------------------


def _wrap_store() -> None:
    """Wrap what makes a store for the default group. A second call has no effect."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    # The package has a function of the module's name.
    rendezvous: Any = import_module("torch.distributed.rendezvous")
    if hasattr(c10d.init_process_group, "serves_without_waiting"):
        return
    init: Any = _with_a_hint(c10d.init_process_group)
    init.serves_without_waiting = True
    c10d.init_process_group = dist.init_process_group = init
    rendezvous.TCPStore = _with_a_choice(rendezvous.TCPStore)


def _with_a_hint(init: Any) -> Any:
    signature = inspect.signature(init)

    @functools.wraps(init)
    def with_a_hint(*args: Any, **options: Any) -> Any:
        try:
            backend = signature.bind(*args, **options).arguments.get("backend")
        except TypeError:
            backend = None  # torch says what is wrong
        token = _waits_itself.set(_names_in(str(backend or "").lower()) == {_NAME})
        try:
            return init(*args, **options)
        finally:
            _waits_itself.reset(token)

    return with_a_hint


def _with_a_choice(make: Any) -> Any:
    @functools.wraps(make, updated=())
    def with_a_choice(*args: Any, **options: Any) -> Any:
        if _waits_itself.get():
            options.setdefault("wait_for_workers", False)
        return make(*args, **options)

    return with_a_choice
