"""The launchers of docs/integrations.md, each with two real processes.

What runs are the commands of the page. Only their addresses and ports are others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import harness
import pytest
from page_commands import DEADLINE, replaced, runs

from tests.lab.processes import free_port

MPIRUN = {
    # Open MPI refuses to run as root, and to start more ranks than there are processors.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

pytestmark = [
    pytest.mark.timeout(DEADLINE + 60),
    pytest.mark.beyond("gloo", "the commands of the page choose q7x2"),
]


def notebook_cell() -> str:
    text = (harness.ROOT / "docs/integrations.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    (found,) = (each for each in blocks if "notebook_launcher" in each)
    return found


@contextlib.contextmanager
def started(command: str, log: pathlib.Path, **more: str) -> Iterator[subprocess.Popen]:
    """A shell that runs the command in the checkout; what it leaves running is ended."""
    programs = pathlib.Path(sys.executable).parent
    path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    environment = os.environ | path | {"OMP_NUM_THREADS": "1"} | more
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-ec", command],
            cwd=harness.ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def output_of(command: str, log: pathlib.Path, **more: str) -> str:
    with started(command, log, **more) as process:
        code = process.wait(DEADLINE)
    text = log.read_text()
    assert code == 0, text
    return text


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(library) is None,
        reason=f"{library} is not installed: see docs/integrations.md",
    )


# ---- torchrun with a number of machines that changes ---------------------------------------------

GROWING = """
    import os, pathlib, sys, torch, torch.distributed as dist
    dist.init_process_group("q7x2")
    rank, size = dist.get_rank(), dist.get_world_size()
    while True:
        total = torch.ones(4)
        dist.all_reduce(total)
        assert total.tolist() == [size] * 4
        pathlib.Path(sys.argv[1], f"{size} ranks").touch()
        if size == 2:
            break
    print(f"rank {rank} of {size} is done", flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.nightly("starts torchrun twice, and ranks three times")
@runs("docs/integrations.md", "export TORCH_DISABLE_SHARE", "torchrun --nnodes=1:2")
def test_torchrun_restarts_with_a_second_machine(printed: str, tmp_path: pathlib.Path) -> None:
    program = tmp_path / "growing.py"
    program.write_text(textwrap.dedent(GROWING))
    # torchrun reads the variables PET_* like its options.
    options = {"PET_MONITOR_INTERVAL": "0.1", "PET_NPROC_PER_NODE": "1"}
    here = {
        "node-a:29500": f"localhost:{free_port()}",
        "--nproc-per-node 4 ": "",
        "last_call_timeout=30": "last_call_timeout=1",
        "train.py": f"{program} {tmp_path}",
    }
    command = replaced(printed, here)
    logs = [tmp_path / f"machine{number}" for number in range(2)]
    with started(command, logs[0], **options) as first:
        alone = tmp_path / "1 ranks"
        harness.wait_until(lambda: alone.exists() or first.poll() is not None, DEADLINE)
        assert first.poll() is None, logs[0].read_text()
        with started(command, logs[1], **options) as second:
            codes = (first.wait(DEADLINE), second.wait(DEADLINE))
    text = "".join(log.read_text() for log in logs)
    assert codes == (0, 0), text
    assert {f"rank {rank} of 2 is done" for rank in range(2)} <= set(text.splitlines())


# ---- mpirun --------------------------------------------------------------------------------------


@pytest.mark.nightly("a launcher of other software")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun: apt install openmpi-bin")
@runs("docs/integrations.md", "mpirun")
def test_mpirun(printed: str, tmp_path: pathlib.Path) -> None:
    command = replaced(printed, {"node-a": "localhost", "29500": str(free_port())})
    text = output_of(command, tmp_path / "log", **MPIRUN)
    assert "all_reduce over 2 ranks: correct" in text


# ---- Accelerate ----------------------------------------------------------------------------------


@pytest.mark.nightly("a launcher of other software")
@needs("accelerate")
@runs("docs/integrations.md", "accelerate launch")
def test_accelerate_launch(printed: str, tmp_path: pathlib.Path) -> None:
    port = f"accelerate launch --main_process_port {free_port()}"
    command = replaced(printed, {"accelerate launch": port})
    text = output_of(command, tmp_path / "log", HF_HUB_OFFLINE="1")
    assert "2 ranks on q7x2 have equal parameters" in text


@pytest.mark.nightly("a launcher of other software")
@needs("accelerate")
@runs("docs/integrations.md", "accelerate launch")
def test_accelerate_launch_with_cpu_starts_one_process(
    printed: str, tmp_path: pathlib.Path
) -> None:
    command = replaced(printed, {"--multi_gpu": "--cpu"})
    with started(command, tmp_path / "log", HF_HUB_OFFLINE="1") as process:
        assert process.wait(DEADLINE) != 0
    page = (harness.ROOT / "docs/integrations.md").read_text()
    (quoted,) = re.findall(r"`(environment variable RANK .*?)`", page)
    assert quoted in (tmp_path / "log").read_text()


@pytest.mark.nightly("a launcher of other software")
@needs("accelerate")
def test_notebook_launcher(tmp_path: pathlib.Path) -> None:
    cell = notebook_cell()
    assert "num_processes=2)" in cell
    cell = cell.replace("num_processes=2)", f'num_processes=2, use_port="{free_port()}")')
    program = tmp_path / "cell.py"
    program.write_text(cell)
    text = output_of(f"python {program}", tmp_path / "log", HF_HUB_OFFLINE="1")
    assert sorted(re.findall(r"rank (\d) has (\S+)", text)) == [("0", "3.0"), ("1", "3.0")]
