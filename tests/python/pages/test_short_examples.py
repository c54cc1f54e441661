"""The short examples: each trains with real processes, and fits on a page of 60 lines."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import harness
import interpreters
import pytest
from page_commands import replaced, runs, shell

EXAMPLES = harness.ROOT / "examples"
SMALL = ("--steps=30", "--dim=32")
DEADLINE = 300  # seconds, of a job that takes about 10 on a machine with nothing else to do

pytestmark = pytest.mark.timeout(DEADLINE + 60)
STARTS = "starts torchrun; what it shows has tests of its own"


def torchrun(ranks: int, script: str, *arguments: str) -> str:
    """Runs an example; returns its output, or fails with it."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [interpreters.python(), *launcher, str(EXAMPLES / script), *arguments],
        env=os.environ | interpreters.environment() | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def figures(output: str, pattern: str) -> list[float]:
    found = re.search(pattern, output)
    assert found is not None, output
    return [float(figure) for figure in found.groups()]


@runs("docs/integrations.md", "torchrun --nproc-per-node 2 examples/ddp_hook.py")
def test_ddp_with_a_hook(printed: str) -> None:
    command = replaced(printed, {"torchrun": "torchrun --standalone"})
    output = shell(f"{command} {' '.join(SMALL)}", harness.ROOT)
    loss, ratio = figures(output, r"validation loss (\S+), (\S+) x fewer bytes")
    assert loss < 5  # log 256 = 5.55: nothing is known
    assert 3 < ratio < 4


@pytest.mark.nightly(STARTS)
def test_fsdp2() -> None:
    loss, gradients, weights = figures(
        torchrun(2, "fsdp2.py", *SMALL),
        r"validation loss (\S+), x fewer bytes: gradients (\S+), weights (\S+)",
    )
    assert loss < 5
    assert 4 < gradients < 8
    assert 3 < weights < 4


@pytest.mark.nightly(STARTS)
def test_hsdp() -> None:
    loss, ratio = figures(
        torchrun(4, "hsdp.py", *SMALL), r"validation loss (\S+), (\S+) x fewer bytes"
    )
    assert loss < 5
    assert 3 < ratio <= 4


@pytest.mark.nightly(STARTS)
def test_diloco() -> None:
    output = torchrun(2, "diloco.py", "--steps=8", "--every=4", "--dim=32")
    assert "step 8: loss" in output
    assert "2 outer steps" in output
    (ratio,) = figures(output, r"(\d+) x fewer bytes than float32")
    assert 100 <= ratio < 200


@pytest.mark.nightly(STARTS)
def test_sharded_embedding() -> None:
    first, last, share = figures(
        torchrun(2, "embedding.py"), r"loss (\S+) -> (\S+), (\S+)% of the table"
    )
    assert first == pytest.approx(0.69, abs=0.05)  # log 2: nothing is known
    assert last < first - 0.05
    assert 0 < share < 5


@pytest.mark.nightly(STARTS)
def test_tensor_parallel() -> None:
    first, last, chunks = figures(
        torchrun(2, "tensor_parallel.py"), r"loss (\S+) -> (\S+); up: 2 ranks, (\d+) chunks"
    )
    assert last < first - 0.2
    assert chunks >= 1


def test_examples_are_short(repository: pathlib.Path) -> None:
    names = ("ddp_hook.py", "fsdp2.py", "hsdp.py", "diloco.py", "embedding.py")
    names += ("tensor_parallel.py",)
    files = [EXAMPLES / name for name in names]
    files += (EXAMPLES / "integrations").glob("*.py")
    lengths = {file.name: len(file.read_text().splitlines()) for file in files}
    assert {name: length for name, length in lengths.items() if length > 60} == {}
    readme = (repository / "docs/integrations.md").read_text()
    assert [name for name in names if f"../examples/{name}" not in readme] == []


def test_the_notebook_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell, in order, as Jupyter runs it; the last pictures are SVG."""
    for library in ("nbclient", "nbformat", "ipykernel", "matplotlib"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed: pip install nbclient ipykernel matplotlib")
    import nbclient
    import nbformat

    monkeypatch.setenv("NO_COLOR", "1")
    programs = pathlib.Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(EXAMPLES / "fabric_and_plan.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "save it without outputs"
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=DEADLINE, resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = "".join(output.get("text", "") for output in outputs)
    found = re.search(r"(\S+): (\S+) s; ring: (\S+) s", text)
    assert found is not None, text
    assert float(found[2]) < float(found[3])
    assert f"by {found[1]}" in text  # the simulator runs the same choice
    pictures = [output for output in outputs if "image/svg+xml" in output.get("data", {})]
    assert len(pictures) == 2
