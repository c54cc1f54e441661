"""Chooses and loads UCX before the compiled module, which links to it by soname only.

``Q7X2_UCX`` chooses: ``wheel`` (or unset) is the ``libucx`` package, ``system`` is what the dynamic
linker finds, and anything else is a path: libucp.so.0 itself or the directory that holds it. A
cluster's own UCX has the RDMA transports that the wheel lacks.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

# In the order of their dependencies, to load each by its path. libucm and libucs need each other;
# libucs finds libucm by its own search path.
_LIBRARIES = ("libucs.so.0", "libuct.so.0", "libucp.so.0")

# A function of each library, of all versions: by it the linker tells which file was loaded.
_FUNCTIONS = {
    "libucm": "ucm_set_event_handler",
    "libucs": "ucs_status_string",
    "libuct": "uct_component_query",
    "libucp": "ucp_get_version",
}

# UCX reads these once, while it loads. It is a guest in the user's process: crash handlers, SIGHUP
# and logging are torch's and the user's, hooks in mmap and malloc would slow down torch's
# allocators, and a service thread would not survive a fork.
_GUEST_SETTINGS = {
    "UCX_HANDLE_ERRORS": "none",
    "UCX_ERROR_SIGNALS": "",
    "UCX_DEBUG_SIGNO": "0",
    "UCX_LOG_LEVEL": "fatal",
    "UCX_MEM_MMAP_HOOK_MODE": "none",
    "UCX_MEM_MALLOC_HOOKS": "n",
    "UCX_MEM_MALLOC_RELOC": "n",
    "UCX_MEM_EVENTS": "n",
    "UCX_VFS_ENABLE": "n",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
}


class UcxLibrary:
    """The UCX that this process uses."""

    def __init__(self, origin: str, path: str) -> None:
        self.origin = origin
        """``wheel``, ``system``, ``path``, or ``process`` where it was loaded before q7x2 came."""
        self.path = path
        """The libucp that was loaded."""


@functools.cache
def load() -> UcxLibrary:
    """Load the chosen UCX into the process, once.

    Raises:
        ImportError: It is not there, or another UCX is in the process already.
    """
    setting = os.environ.get("Q7X2_UCX", "")
    present = _loaded().get("libucp")
    if present is not None and not setting:
        return UcxLibrary("process", present)  # two copies of UCX in a process would collide
    origin, wanted = _choose(setting)
    if present is not None:
        if wanted is not None and not wanted.samefile(present):
            raise ImportError(
                f"Q7X2_UCX={setting} asks for {wanted}, but another package has loaded the UCX at "
                f"{present} into this process; create the q7x2 process group before that package "
                f"is used, or unset Q7X2_UCX to share its UCX"
            )
        return UcxLibrary("process", present)
    with guest_settings():
        if wanted is None:
            _load_system()
        else:
            _load_files(wanted)
    loaded = _loaded()
    folders = {Path(path).parent for path in loaded.values()}
    if len(folders) > 1 and len({folder.resolve() for folder in folders}) > 1:
        raise ImportError(
            f"the parts of UCX come from different installations: {', '.join(loaded.values())}; "
            f"check LD_LIBRARY_PATH and Q7X2_UCX"
        )
    return UcxLibrary(origin, loaded["libucp"])


def _choose(setting: str) -> tuple[str, Path | None]:
    """Where ``setting`` points: the origin, and libucp's path unless the linker shall find it."""
    if setting in ("", "wheel"):
        spec = importlib.util.find_spec("libucx")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError(
                "q7x2 needs UCX: install the Python package 'libucx-cu13', or choose an installed "
                "UCX with Q7X2_UCX=system or Q7X2_UCX=<directory with libucp.so.0>"
            )
        return "wheel", Path(spec.submodule_search_locations[0]) / "lib" / "libucp.so.0"
    if setting == "system":
        return "system", None
    path = Path(setting).expanduser()
    if path.is_dir():
        path /= "libucp.so.0"
    if not path.is_file():
        raise ImportError(
            f"Q7X2_UCX={setting}: expected 'wheel', 'system', a directory with libucp.so.0, or the "
            f"file itself, but there is no file {path.absolute()}"
        )
    return "path", path.resolve()


def _load_system() -> None:
    try:
        ctypes.CDLL("libucp.so.0")
    except OSError as error:
        raise ImportError(
            f"Q7X2_UCX=system, but the dynamic linker finds no usable libucp.so.0 ({error}); "
            f"install UCX (Debian and Ubuntu: apt-get install libucx0), or give its directory: "
            f"Q7X2_UCX=<directory>"
        ) from error


def _load_files(libucp: Path) -> None:
    for name in _LIBRARIES:
        library = libucp.with_name(name)
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            raise ImportError(f"q7x2 could not load UCX from {libucp.parent}: {error}") from error


class _DlInfo(ctypes.Structure):
    """What ``dladdr`` fills in."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def _loaded() -> dict[str, str]:
    """The UCX libraries in this process: {"libucp": "/usr/lib/libucp.so.0.0.0", ...}.

    It asks the linker. ``/proc/self/maps`` would say it too, but takes far longer.
    """
    libraries = {}
    info = _DlInfo()
    for name, function in _FUNCTIONS.items():
        try:
            library = ctypes.CDLL(f"{name}.so.0", mode=os.RTLD_NOLOAD)
        except OSError:
            continue
        address = ctypes.cast(library[function], ctypes.c_void_p)
        if ctypes.pythonapi.dladdr(address, ctypes.byref(info)) and info.file:
            libraries[name] = os.fsdecode(info.file)
    return libraries


@contextlib.contextmanager
def guest_settings() -> Iterator[None]:
    """The guest settings in the environment, as far as the user has not set them."""
    added = {key: value for key, value in _GUEST_SETTINGS.items() if key not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)
