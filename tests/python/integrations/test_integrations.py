"""The examples of docs/integrations.md, each with two real processes.

Their libraries are the requirement group ``integrations``, and TorchRec; an example whose library
is not installed is skipped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import harness
import pytest

from tests.lab.processes import free_port

EXAMPLES = harness.ROOT / "examples/integrations"
DEADLINE = 600  # seconds; DeepSpeed compiles a helper of its own when it starts first
LIBRARIES = {
    "accelerate": "accelerate",
    "dcp": "torch",
    "deepspeed": "deepspeed",
    "fabric": "lightning",
    "lightning": "lightning",
    "peft": "peft",
    "pipelining": "torch",
    "torchrec": "torchrec",
    "torchtitan": "torchtitan",
    "trainer": "transformers",
    "trl": "trl",
}
OTHERS = ("ray", "torchft")  # do not start under torchrun

pytestmark = pytest.mark.timeout(DEADLINE + 60)


def need(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: see docs/integrations.md")


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | more


def assert_equal_parameters(name: str, *launcher: str, **more: str) -> None:
    """The example ends with the line that says so."""
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / f"with_{name}.py")],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 ranks on q7x2 have equal parameters" in done.stdout, done.stdout


@pytest.mark.nightly("starts torchrun with each library")
@pytest.mark.parametrize("name", LIBRARIES)
def test_an_example_ends_with_equal_parameters(name: str) -> None:
    need(LIBRARIES[name])
    assert_equal_parameters(
        name, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"
    )


def test_every_example_is_in_the_documentation_and_is_run(repository: pathlib.Path) -> None:
    page = (repository / "docs/integrations.md").read_text()
    examples = {path.name for path in EXAMPLES.glob("with_*.py")}
    assert set(re.findall(r"with_\w+\.py", page)) == examples
    assert examples == {f"with_{name}.py" for name in [*LIBRARIES, *OTHERS]}


@pytest.mark.nightly("starts Ray")
def test_ray_train_starts_the_ranks_itself() -> None:
    need("ray")
    # Ray has sockets in its folder, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        apart = {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        assert_equal_parameters("ray", **apart)


# ---- torchft -------------------------------------------------------------------------------------


@contextlib.contextmanager
def lighthouse(log: pathlib.Path) -> Iterator[str]:
    """The address of a lighthouse that wants two replicas."""
    program = pathlib.Path(sys.executable).parent / "torchft_lighthouse"
    port = free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, "--bind", f"127.0.0.1:{port}", "--min_replicas", "2"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def replica(
    number: int, address: str, log: pathlib.Path, **more: str
) -> Iterator[subprocess.Popen]:
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "with_torchft.py")],
            env=environment(REPLICA=str(number), TORCHFT_LIGHTHOUSE=address, **more),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ending(log: pathlib.Path) -> str:
    """Step and parameters at the end of a replica."""
    text = log.read_text()
    found = re.search(r"on torchft-q7x2 ends at (step 8, parameters \S+)", text)
    assert found is not None, text
    return found[1]


@pytest.mark.nightly("starts programs of another library")
def test_torchft_replicas_train_together(tmp_path: pathlib.Path) -> None:
    need("torchft")
    logs = [tmp_path / f"replica{number}" for number in range(2)]
    with (
        lighthouse(tmp_path / "lighthouse") as address,
        replica(0, address, logs[0]) as first,
        replica(1, address, logs[1]) as second,
    ):
        assert (first.wait(DEADLINE), second.wait(DEADLINE)) == (0, 0), logs[0].read_text()
    assert ending(logs[0]) == ending(logs[1])


@pytest.mark.nightly("starts programs of another library")
def test_a_torchft_replica_dies_and_comes_back(tmp_path: pathlib.Path) -> None:
    need("torchft")
    logs = [tmp_path / f"replica{number}" for number in range(3)]
    with (
        lighthouse(tmp_path / "lighthouse") as address,
        replica(0, address, logs[0]) as survivor,
    ):
        with replica(1, address, logs[1], DIE_AT_STEP="3") as victim:
            assert victim.wait(DEADLINE) == 9, logs[1].read_text()
        with replica(1, address, logs[2]) as successor:
            assert successor.wait(DEADLINE) == 0, logs[2].read_text()
            assert survivor.wait(DEADLINE) == 0, logs[0].read_text()
    assert ending(logs[0]) == ending(logs[2])
