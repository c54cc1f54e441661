"""The stages of `./dev gpu`, in their order."""

from __future__ import annotations

from functools import partial

from tests.gpu import build, measure, tests
from tests.gpu.runner import Stage


def _sanitizer(tool: str) -> Stage:
    what = f"the C++ tests that need a GPU, under compute-sanitizer's {tool}"
    return Stage(tool, what, 570, partial(tests.sanitizer, tool=tool))


STAGES = (
    Stage("build", "the module, the C++ tests and the benchmark of kernels", 570, build.run),
    Stage("cuda", "the C++ tests that need a GPU; none may be skipped", 300, tests.cuda),
    Stage("python", "the Python tests of device tensors, with CUDA tensors", 570, tests.python),
    Stage("cpp", "all C++ tests", 570, tests.cpp),
    _sanitizer("memcheck"),
    _sanitizer("racecheck"),
    _sanitizer("synccheck"),
    Stage("kernels", "codecs' kernels beside a copy of the same bytes", 300, measure.kernels),
    Stage("ranks", "4 ranks on one GPU: int4 beside dense", 300, measure.ranks),
    Stage("ddp", "a step of DDP beside NCCL, or Gloo with one GPU", 570, measure.ddp),
    Stage("fsdp", "a step of FSDP2 beside NCCL, or Gloo with one GPU", 570, measure.fsdp),
)
