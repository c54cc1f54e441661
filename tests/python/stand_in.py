"""The stand-in accelerator as a device of torch, ``fake``: see docs/testing_devices.md.

``load()`` registers it. After that ``torch.fake`` is its module, like ``torch.cuda``, and tensors
are made with ``device="fake"`` or ``"fake:1"``. What controls it is here: ``paused``, ``slow``.

Tests that take the fixture ``device`` run with CUDA tensors, too, on a machine with a GPU
(``pytest --device cuda``). CUDA's streams can be made ``slow``, and know no other control.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.machinery
import importlib.util
import inspect
import itertools
import os
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist

NAME = "fake"

_stores = itertools.count()

DIRECTORY = pathlib.Path(__file__).resolve().parent.parent / "device"


def find() -> pathlib.Path | None:
    """Return the module that was compiled for this version of torch; None if it was not built."""
    _await_compiler()
    minor = ".".join(torch.__version__.split(".")[:2])
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    paths = (DIRECTORY / f"stand_in_accelerator-torch{minor}{suffix}" for suffix in suffixes)
    return next((path for path in paths if path.exists()), None)


@functools.cache
def _await_compiler() -> None:
    """`./dev test` starts pytest while they are compiled; this file is there until then."""
    building = os.environ.get("Q7X2_TEST_BUILDING")
    if building:
        harness.wait_until(lambda: not pathlib.Path(building).exists(), seconds=1200)


needs_accelerator = pytest.mark.skipif(
    "config.getoption('device') == 'fake' and stand_in.find() is None",
    reason="the stand-in accelerator is built with the C++ tests",
)


def needs_control(device: str) -> None:
    """Skip the test if ``device`` is not the stand-in, whose streams a test can control."""
    if device != NAME:
        pytest.skip(f"needs control of the streams, which {device} does not offer")


@functools.cache
def load() -> Any:
    """Register the accelerator with torch, and return its compiled module."""
    path = find()
    assert path is not None
    spec = importlib.util.spec_from_file_location("stand_in_accelerator", path)
    assert spec is not None
    assert spec.loader is not None
    compiled = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compiled)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module(compiled))
    torch.utils.generate_methods_for_privateuse1_backend()
    return compiled


def find_driver() -> list[pathlib.Path]:
    """Return the stand-ins for the libraries of CUDA's driver; none if they were not built."""
    _await_compiler()
    paths = [DIRECTORY / name for name in ("libnvidia-ml.so.1", "libcuda.so.1")]
    return paths if all(path.exists() for path in paths) else []


needs_driver = pytest.mark.skipif(
    "config.getoption('device') != 'fake' or stand_in.find() is None or not stand_in.find_driver()",
    reason="the stand-ins for an accelerator and for CUDA's driver are built with the C++ tests",
)


@functools.cache
def load_driver() -> ctypes.CDLL:
    """Load the stand-in for CUDA's driver, which knows the memory of the accelerator.

    From then on UCX takes that for memory of a CUDA device. To be called before the first group.
    """
    libraries = [ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL) for path in find_driver()]
    load().share_with_driver()
    return libraries[-1]


class Copies(ctypes.Structure):
    """What the engines of CUDA's stand-in have copied: tests/device/libcuda/copies.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for way in ("to_device", "to_host", "on_device", "peer")
        for name in (way, f"bytes_{way}")
    ]


def copies_of(call: Callable[[], object]) -> dict[str, int]:
    """Return what UCX copies during ``call``: numbers of copies, and their bytes."""

    def look() -> dict[str, int]:
        copies = Copies()
        load_driver().fake_cuda_copies(ctypes.byref(copies))
        return {name: getattr(copies, name) for name, _ in copies._fields_}

    before = look()
    call()
    return {name: count - before[name] for name, count in look().items()}


def _device_module(compiled: Any) -> types.ModuleType:
    """``torch.fake``, with what torch's own code asks of such a module."""
    module: Any = types.ModuleType(f"torch.{NAME}")
    sys.modules[module.__name__] = module

    def device(index: int | torch.device | None = None) -> torch.device:
        if isinstance(index, torch.device):
            index = index.index
        return torch.device(NAME, compiled.current_device() if index is None else index)

    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.device_count = compiled.device_count
    module.current_device = compiled.current_device
    module.set_device = lambda index: compiled.set_device(device(index).index)
    module.synchronize = lambda index=None: compiled.synchronize(device(index).index)
    module.current_stream = lambda index=None: torch.accelerator.current_stream(device(index))
    module.set_stream = torch.accelerator.set_stream
    module.Stream = lambda device=None, priority=0: torch.Stream(
        device=module._device(device), priority=priority
    )
    module.Event = lambda enable_timing=False: torch.Event(NAME, enable_timing=enable_timing)
    module.stream = lambda stream: contextlib.nullcontext() if stream is None else stream
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.manual_seed = module.manual_seed_all = compiled.seed_all
    module._device = device
    return module


def run(
    pool: Any,
    body: Callable[..., Any],
    shared: str,
    device: str = NAME,
    device_path: str | None = None,
    **arguments: Any,
) -> list[Any]:
    """Run ``body`` on every rank of ``pool``, in a default group for tensors of ``device``.

    ``shared``: a directory of the test. ``device`` is passed on to a body that takes it.
    ``device_path``: the group's, and UCX knows the memory of the accelerator; None: it does not.
    """
    if "device" in inspect.signature(body).parameters:
        arguments["device"] = device
    group = harness.GroupSpec(backend="q7x2", key="stand_in", init="none")
    return pool.run(
        _run_in_group,
        group,
        chosen=body,
        store=f"file://{shared}/{next(_stores)}",
        world_size=pool.world_size,
        device=device,
        device_path=device_path,
        arguments=arguments,
    )


@functools.cache
def _register(memory: str) -> None:
    """Tell q7x2 of the accelerator, which it remembers for the rest of the process."""
    q7x2.groups.register_accelerator(NAME, load().stream_calls(), load().codec_kernels(), memory)


def _run_in_group(
    chosen: Callable[..., Any],
    store: str,
    world_size: int,
    device: str,
    device_path: str | None,
    arguments: dict[str, Any],
) -> Any:
    if device == NAME:
        if device_path is not None:
            load_driver()
        _register("" if device_path is None else "cuda")
    else:
        # One GPU per rank, as far as there are so many.
        torch.cuda.set_device(harness.current_rank() % torch.cuda.device_count())
    dist.init_process_group(
        "q7x2",
        init_method=store,
        rank=harness.current_rank(),
        world_size=world_size,
        pg_options=q7x2.Options(device_path=device_path or ""),
    )
    result = chosen(**arguments)
    dist.destroy_process_group()
    return result


@contextlib.contextmanager
def paused(*streams: torch.Stream) -> Iterator[None]:
    """What ``streams`` have begun goes on; their next operations wait until the block ends."""
    for stream in streams:
        load().pause(stream.device_index, stream.stream_id)
    try:
        yield
    finally:
        for stream in streams:
            load().resume(stream.device_index, stream.stream_id)


def _high_priority(first: int) -> list[torch.Stream]:
    """Every second stream of high priority of device 0: q7x2 takes them in pairs."""
    numbers = range(load().first_high_priority + first, load().streams, 2)
    kind = torch._C._autograd.DeviceType.PrivateUse1.value
    return [torch.Stream(stream_id=i, device_index=0, device_type=kind) for i in numbers]


def copying_to_host() -> list[torch.Stream]:
    """Return the streams on which q7x2 copies inputs to the host."""
    return _high_priority(0)


def copying_to_device() -> list[torch.Stream]:
    """Return the streams on which q7x2 copies results to the device."""
    return _high_priority(1)


@contextlib.contextmanager
def slow(stream: torch.Stream, seconds: float) -> Iterator[None]:
    """Every operation of ``stream`` that begins in the block takes ``seconds`` longer.

    A CUDA stream, which must be the current one of its device, stops once for ``seconds``.
    """
    if stream.device.type == "cuda":
        with torch.cuda.device(stream.device):
            torch.cuda._sleep(int(seconds * 2e9))  # cycles: a clock of 2 GHz at most
        yield
        return
    load().slow_down(stream.device_index, stream.stream_id, seconds)
    try:
        yield
    finally:
        load().slow_down(stream.device_index, stream.stream_id, 0)


def bytes_of(call: Callable[[], object]) -> tuple[int, int]:
    """Return the bytes that ``call`` copies to the host, and to the device."""
    torch.accelerator.synchronize()
    to_host, to_device = load().copied_bytes()
    call()
    torch.accelerator.synchronize()
    after = load().copied_bytes()
    return after[0] - to_host, after[1] - to_device


@contextlib.contextmanager
def copy_rate(bytes_per_second: float) -> Iterator[None]:
    """Copies between host and device take as long as that."""
    load().set_copy_rate(bytes_per_second)
    try:
        yield
    finally:
        load().set_copy_rate(0)


@contextlib.contextmanager
def left_out(what: str) -> Iterator[None]:
    """The streams behave as if q7x2 forgot ``what``; see stream_calls.h.

    ``"nothing"`` works with every device, the others with the stand-in only.
    """
    if what == "nothing":
        yield
        return
    kinds = load().LeftOut
    load().leave_out(getattr(kinds, what))
    try:
        yield
    finally:
        load().leave_out(kinds.nothing)


def judge(
    case: Callable[..., bool],
    what: str,
    device: str = NAME,
    first: Callable[[], object] | None = None,
) -> bool:
    """Return whether ``case`` is right on all ranks if q7x2 forgets ``what``.

    ``case`` gets ``device`` if it takes it. ``first`` runs before, with nothing forgotten.
    """
    if first is not None:
        first()
        torch.accelerator.synchronize()
    takes_device = "device" in inspect.signature(case).parameters
    with left_out(what):
        is_right = case(device) if takes_device else case()
        torch.accelerator.synchronize()
    verdict = torch.tensor([int(is_right)])
    dist.all_reduce(verdict, dist.ReduceOp.MIN)
    return bool(verdict.item())
