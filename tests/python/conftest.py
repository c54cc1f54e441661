"""Runs ``@pytest.mark.ranks(...)`` tests on rank processes; see ``harness`` and docs/testing.md."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores; inherited by all of them

# A shell that starts a command in the background has it ignore Ctrl-C, and with it all ranks.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import failure_reports
import harness
import interpreters
import leaks
import levels

# XDG_CACHE_HOME is another folder in each session, and to list all fonts takes ten seconds.
os.environ.setdefault("MPLCONFIGDIR", str(harness.ROOT / "build" / "matplotlib"))

# Their tests compare trainings bit for bit. By the times of calls another algorithm may be chosen,
# which adds in another order.
REPEATS = (
    *("cadence", "embedding", "fsdp", "functional", "hooks", "late", "optim", "overlap"),
    "policy",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", default="q7x2", help="the c10d backend under test")
    parser.addoption(
        "--device",
        choices=("fake", "cuda"),
        default="fake",
        help="whose tensors the tests of devices take; with cuda no other tests run",
    )
    levels.addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    for plugin in (levels, leaks, failure_reports):
        config.pluginmanager.register(plugin)
    config.addinivalue_line(
        "markers",
        "ranks(*world_sizes, timeout=30, deadline=60, fresh=False, init='file', env=None, "
        "places=None, stays=False, backend='{backend}', device_id=None): "
        "call the test on every rank of a process group; "
        "the test may take `world_size` as an argument",
    )
    config.addinivalue_line(
        "markers", "beyond(backend, reason): what a named other backend does not do"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    backend = config.getoption("--backend")
    if config.getoption("--device") == "cuda":
        others = [item for item in items if "device" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    for item in items:
        for mark in item.iter_markers("beyond"):
            if mark.args[0] == backend:
                item.add_marker(pytest.mark.skip(reason=f"{backend}: {mark.args[1]}"))


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks a ``ranks`` test runs on (set by its mark)."""
    return int(request.param)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("ranks")
    if mark is None:
        return
    if "world_size" not in metafunc.fixturenames:
        metafunc.fixturenames.append("world_size")
    path = metafunc.definition.path
    sizes = levels.world_sizes(metafunc.config, path, mark.args or (2,))
    metafunc.parametrize("world_size", sizes, ids=lambda n: f"{n}r", indirect=True)
    if places := mark.kwargs.get("places"):
        if "place" not in metafunc.fixturenames:
            metafunc.fixturenames.append("place")
        metafunc.parametrize("place", list(places))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Sends the body of a ``ranks`` test to the ranks in place of calling it here."""
    mark = pyfuncitem.get_closest_marker("ranks")
    if mark is None:
        return None
    options = dict(mark.kwargs)
    world_size = pyfuncitem.callspec.params["world_size"]
    names = pyfuncitem._fixtureinfo.argnames
    kwargs = {name: pyfuncitem.funcargs[name] for name in names}
    backend = pyfuncitem.config.getoption("--backend")
    group = harness.GroupSpec(
        backend=options.pop("backend", "{backend}").format(backend=backend),
        key=pyfuncitem.module.__name__,
        timeout=options.pop("timeout", 30.0),
        init=options.pop("init", "file"),
        device_id=options.pop("device_id", None),
        repeats=pyfuncitem.path.parent.name in REPEATS,
    )
    deadline = options.pop("deadline", 60.0)
    fresh = options.pop("fresh", False)
    env = options.pop("env", None)
    if places := options.pop("places", None):
        env = places[pyfuncitem.callspec.params["place"]]
    stays = options.pop("stays", False)
    has_own = fresh or (env and not stays)
    if options:
        raise TypeError(f"pytest.mark.ranks has no option {', '.join(options)}")
    if has_own:
        pool = harness.RankPool(world_size, env)
    else:
        pool = pyfuncitem.config.stash[_POOLS].get(world_size, env)
    problems: list[str] = []
    try:
        pool.run(pyfuncitem.obj, group, deadline, **kwargs)
    except harness.RankFailure as failure:
        problems.append(str(failure))
    finally:
        if has_own:
            problems += pool.close()
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
    return True


_POOLS = pytest.StashKey[harness.RankPools]()


@pytest.fixture(scope="session", autouse=True)
def _catalogue(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The ranks of a session measure this host once, and leave the user's catalogue alone."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _rank_pools(request: pytest.FixtureRequest, _catalogue: None) -> Iterator[None]:
    pools = request.config.stash[_POOLS] = harness.RankPools()
    yield
    problems = pools.close()
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """The name of the backend under test."""
    return str(request.config.getoption("--backend"))


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """The device of a test's tensors: the stand-in accelerator, or CUDA with ``--device cuda``."""
    name = str(request.config.getoption("--device"))
    if name == "cuda":
        import torch

        assert torch.cuda.is_available(), f"torch {torch.__version__} finds no CUDA device"
    return name


@pytest.fixture
def new_pool() -> Iterator[Callable[..., harness.RankPool]]:
    """Makes pools that a test drives itself (kills, interrupts); they end with the test."""
    pools: list[harness.RankPool] = []

    def make(world_size: int, **kwargs: Any) -> harness.RankPool:
        pools.append(harness.RankPool(world_size, **kwargs))
        return pools[-1]

    yield make
    for pool in pools:
        pool.usable = False  # such a test has judged its ranks itself: they are simply ended
        pool.close()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started by ``sys.executable`` is a copy of an interpreter that has imported torch."""
    for name, value in interpreters.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", interpreters.python())


@pytest.fixture
def shared(tmp_path: pathlib.Path) -> str:
    """A directory that all ranks of a test see."""
    return str(tmp_path)


@pytest.fixture
def repository() -> pathlib.Path:
    """The root of the checkout."""
    return harness.ROOT
