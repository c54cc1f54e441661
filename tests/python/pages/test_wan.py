"""docs/wan.md: its programs and commands, in the order of the page, print what it shows."""

from __future__ import annotations

import pathlib
import shutil

import interpreters
import pytest
from harness import ROOT
from page_commands import DEADLINE, replaced, runs, shell
from tutorial_page import Tutorial, expect_lines

from benchmarks.harness import ranks
from tests.lab import WideLab, WideTopology, wide

needs_lab = pytest.mark.skipif(bool(wide.unavailable()), reason=str(wide.unavailable()))
needs_nft = pytest.mark.skipif(shutil.which("nft") is None, reason="nft not found")

pytestmark = [
    pytest.mark.timeout(DEADLINE + 60),
    pytest.mark.beyond("gloo", "the commands of the page are about q7x2"),
]


def follow(folder: pathlib.Path, *, between_sites: bool) -> None:
    """Writes the programs, and runs the commands; with ``between_sites`` those of the lab."""
    page = Tutorial("wan")
    page.write_files(folder)
    (folder / "examples").symlink_to(ROOT / "examples")
    for step in page.steps:
        if step.needs_lab == between_sites:
            code = step.code.replace("./dev lab", "python -m tests.lab")
            expect_lines(step.shown, shell(code, folder, PYTHONPATH=ranks.python_path()))


def test_on_one_machine(tmp_path: pathlib.Path) -> None:
    follow(tmp_path, between_sites=False)


@needs_lab
@pytest.mark.nightly("five jobs between distant sites; the test of the firewall runs one")
def test_between_two_sites(tmp_path: pathlib.Path) -> None:
    follow(tmp_path, between_sites=True)


@needs_lab
@needs_nft
@runs(
    "docs/wan.md",
    "torchrun --nnodes 2 --node-rank 0",
    "export Q7X2_PORT_RANGE=",
    "nft add table",
    "nft add chain",
    "nft add rule inet job in ct",
    "nft add rule inet job in iif",
    "nft add rule inet job in ip saddr 10.77.1.1 tcp",
    "nft add rule inet job in ip saddr 10.77.1.1 icmp",
)
def test_the_ports_of_the_page_are_enough(printed: str) -> None:
    """Each host drops everything but what the page lets pass, and the job finds its ports."""
    train, *rest = printed.splitlines()
    check = str(ROOT / "examples" / "deploy" / "check.py")
    train = replaced(
        train,
        {"--node-rank 0": "--node-rank $RANK", "a.example.org": "10.77.0.1", "train.py": check},
    )
    rules = replaced("\n".join(rest), {"10.77.1.1": "10.77.$((1 - RANK)).1"})
    environment = interpreters.environment() | {"OMP_NUM_THREADS": "1"}
    with WideLab(WideTopology()) as lab:
        done = lab.run(["bash", "-euc", f"{rules}\n{train}"], env=environment, timeout_s=DEADLINE)
    output = "".join(rank.output for rank in done.ranks)
    assert "to rank 1: many connections" in output
    assert "all_reduce over 2 ranks: correct" in output
