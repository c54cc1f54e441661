"""The package as users meet it: registration, lazy loading, the choice of UCX, good manners."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import interpreters
import pytest
import q7x2
from pairs import nightly

needs_system_ucx = pytest.mark.skipif(
    ctypes.util.find_library("ucp") is None, reason="no UCX is installed in the system"
)


def python(code: str, program: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in an interpreter of its own, with ``env`` on top of a plain environment.

    It has imported torch, but for ``program=sys.executable``.
    """
    ours = ("Q7X2_", "UCX_")
    plain = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return subprocess.run(
        [program or interpreters.python(), "-c", code],
        env=plain | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def output(code: str, program: str | None = None, **env: str) -> str:
    """What ``code`` prints; it has to succeed."""
    done = python(code, program, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wheel_directory() -> str:
    import libucx

    return str(pathlib.Path(libucx.__file__).parent / "lib")


# ---- registration --------------------------------------------------------------------------------


def test_both_entry_point_groups_name_the_same_function() -> None:
    for group in ("torch.backends", "torch.distributed.backends"):
        (entry,) = importlib.metadata.entry_points(group=group, name="q7x2")
        assert entry.value == "q7x2._autoload:register"


def test_import_torch_loads_what_registers_and_nothing_else() -> None:
    """So the backend is known without an import."""
    code = """
import sys, torch
print(sorted(name for name in sys.modules if name.split(".")[0] in ("q7x2", "rich")))
print("libucp" in open("/proc/self/maps").read())
print(torch.distributed.is_backend_available("q7x2"))
"""
    assert (
        output(code, sys.executable) == "['q7x2', 'q7x2._autoload', 'q7x2._backend']\nFalse\nTrue"
    )


def test_an_explicit_import_registers_where_autoload_is_off() -> None:
    code = """
import torch.distributed as d
before = "Q7X2" in d.Backend._plugins  # from torch 2.15 on, a question for it finds the entry point
import q7x2
print(before, "Q7X2" in d.Backend._plugins, d.is_backend_available("q7x2"))
"""
    assert output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "False True True"


def test_importing_q7x2_before_torch_works() -> None:
    code = "import q7x2, torch.distributed as d; print(d.is_backend_available('q7x2'))"
    assert output(code, sys.executable) == "True"


def test_registering_again_keeps_the_first_creator() -> None:
    code = """
import torch.distributed as d
from q7x2._autoload import register
first = d.Backend._plugins["Q7X2"]
register()
print(d.Backend._plugins["Q7X2"] is first, d.Backend.backend_capability["q7x2"])
"""
    assert output(code) == "True ['cpu', 'cuda']"


def test_a_failing_registration_warns_and_does_not_break_import() -> None:
    code = """
import warnings, torch.distributed as d
from q7x2 import _autoload
del d.Backend._plugins["Q7X2"]
d.Backend.register_backend = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    _autoload.register()
print(len(caught), "could not register" in str(caught[0].message))
"""
    assert output(code) == "1 True"


# ---- public names --------------------------------------------------------------------------------


def test_the_version_stands_in_one_place(repository: pathlib.Path) -> None:
    declared = re.search(r'^version = "(.+)"', (repository / "pyproject.toml").read_text(), re.M)
    assert declared is not None
    native = output("from q7x2._core.extension import load; print(load().build_info()['version'])")
    assert q7x2.__version__ == native == declared.group(1)


def test_public_names_resolve_and_unknown_ones_do_not() -> None:
    code = """
import q7x2
print(dir(q7x2) == q7x2.__all__, all(getattr(q7x2, n) is not None for n in q7x2.__all__))
q7x2.nothing
"""
    done = python(code)
    assert done.stdout.strip() == "True True"
    assert "module 'q7x2' has no attribute 'nothing'\n" in done.stderr


def test_the_top_has_few_names() -> None:
    assert len(q7x2.__all__) <= 32


def test_packages_are_there_without_an_import_of_their_own() -> None:
    code = """
import sys, q7x2
print("q7x2.cadence" in sys.modules, q7x2.cadence.DiLoCo.__name__, q7x2.comm_hooks.__name__)
"""
    assert output(code) == "False DiLoCo q7x2.comm_hooks"


def test_a_module_whose_package_is_missing_is_an_attribute_that_is_not_there() -> None:
    code = """
import sys
sys.modules["torchft"] = None  # as if it were not installed
import q7x2
print(hasattr(q7x2, "torchft"))
try:
    from q7x2 import torchft
except ImportError as error:
    print(error)
"""
    missing, error = output(code).splitlines()
    assert missing == "False"
    assert error.startswith("q7x2.torchft needs torchft (pip install torchft)")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DiLoCo", "q7x2.cadence.DiLoCo"),
        ("HookStateError", "q7x2.hooks.HookStateError"),
        ("plan_history", "q7x2.plan.plan_history"),
        ("Quorum", "q7x2.late.QuorumSGD"),
        ("all_gather", "q7x2.all_gather_into_tensor"),
        ("reduce_scatter", "q7x2.reduce_scatter_tensor"),
    ],
)
def test_a_name_of_a_package_is_hinted_at(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; did you mean {meant}\?"):
        getattr(q7x2, name)


def test_the_stub_declares_what_the_module_has(repository: pathlib.Path) -> None:
    stub = (repository / "python/q7x2/_C.pyi").read_text()
    declared = set(re.findall(r"^(?:class |def )?([A-Za-z]\w*)(?=[(:])", stub, re.M))
    code = "from q7x2._core.extension import load; print(*(n for n in dir(load()) if n[0] != '_'))"
    assert declared == set(output(code).split())


def test_monitored_barrier_without_a_group_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="call init_process_group first"):
        q7x2.monitored_barrier()


@pytest.mark.ranks(2, backend="gloo", fresh=True)
def test_monitored_barrier_refuses_a_group_of_another_backend() -> None:
    with pytest.raises(ValueError, match="needs a group with a q7x2 backend"):
        q7x2.monitored_barrier()


# ---- the choice of UCX ---------------------------------------------------------------------------

LOADED = """
from q7x2._core import extension, ucx
extension.load()
library = ucx.load()
print(library.origin, library.path)
"""


@pytest.mark.parametrize("setting", ["", nightly("wheel", "says the default")])
def test_the_wheel_is_the_default(setting: str) -> None:
    assert output(LOADED, Q7X2_UCX=setting) == f"wheel {wheel_directory()}/libucp.so.0"


@needs_system_ucx
def test_the_systems_ucx() -> None:
    origin, path = output(LOADED, Q7X2_UCX="system").split()
    assert origin == "system"
    assert not path.startswith(wheel_directory())


@pytest.mark.parametrize("suffix", [nightly("", "a folder, as the wheel's"), "/libucp.so.0"])
def test_a_path(suffix: str) -> None:
    loaded = output(LOADED, Q7X2_UCX=wheel_directory() + suffix)
    assert loaded == f"path {wheel_directory()}/libucp.so.0"


def test_a_path_that_is_not_there(tmp_path: pathlib.Path) -> None:
    done = python(LOADED, Q7X2_UCX=str(tmp_path / "ucx"))
    assert done.returncode != 0
    assert f"there is no file {tmp_path}/ucx" in done.stderr
    assert "ImportError" in done.stderr


def test_a_file_that_is_no_library(tmp_path: pathlib.Path) -> None:
    (tmp_path / "libucp.so.0").write_text("not a library")
    done = python(LOADED, Q7X2_UCX=str(tmp_path))
    assert done.returncode != 0
    assert f"could not load UCX from {tmp_path}" in done.stderr


def test_a_ucx_that_is_loaded_already_is_shared() -> None:
    first = f"import ctypes; ctypes.CDLL('{wheel_directory()}/libucp.so.0')\n"
    assert output(first + LOADED).startswith("process ")


@needs_system_ucx
def test_two_ucx_in_a_process_are_refused() -> None:
    first = "import ctypes; ctypes.CDLL('libucp.so.0')\n"
    done = python(first + LOADED, Q7X2_UCX="wheel")
    assert done.returncode != 0
    assert "another package has loaded the UCX at" in done.stderr


# ---- a guest in the user's process ---------------------------------------------------------------


@pytest.mark.parametrize("ucx", ["wheel", pytest.param("system", marks=needs_system_ucx)])
def test_loading_leaves_environment_signals_and_threads_as_they_were(ucx: str) -> None:
    code = """
import os, torch
def state():
    status = open("/proc/self/status").read().split()
    return dict(os.environ), status[status.index("SigCgt:") + 1], len(os.listdir("/proc/self/task"))
before = state()
from q7x2._core.extension import load
load()
print(before == state())
"""
    assert output(code, Q7X2_UCX=ucx) == "True"


def test_the_users_own_ucx_settings_win() -> None:
    code = """
import os
from q7x2._core import ucx
with ucx.guest_settings():
    print(os.environ["UCX_LOG_LEVEL"], os.environ["UCX_MEM_EVENTS"])
print(os.environ["UCX_LOG_LEVEL"], "UCX_MEM_EVENTS" in os.environ)
"""
    assert output(code, UCX_LOG_LEVEL="info").splitlines() == ["info n", "info False"]
