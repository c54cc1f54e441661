"""README's command lines on a brand-new Debian, as they stand there."""

from __future__ import annotations

import bare_debian
import pytest
from bare_debian import BareDebian, commands

HOUR_S = 3600
pytestmark = [
    pytest.mark.timeout(2 * HOUR_S),
    pytest.mark.nightly("installs a Debian and compiles everything anew"),
    pytest.mark.beyond("gloo", "installs q7x2"),
    pytest.mark.skipif(bare_debian.why_not() is not None, reason=str(bare_debian.why_not())),
]

TRAIN = "torchrun --standalone --nproc-per-node 2 examples/deploy/check.py"


def test_compiling_it_yourself() -> None:
    packages, environment = (b for b in commands("README.md", "Install") if "dist" not in b)
    with BareDebian() as debian:
        said = debian.run(f"{packages}\n{environment}\nq7x2 info\n{TRAIN}", HOUR_S)
    assert "all_reduce over 2 ranks: correct" in said


def test_the_wheel() -> None:
    wheel = next(b for b in commands("README.md", "Install") if "--find-links dist" in b)
    with BareDebian() as debian:
        debian.run("./dev wheel", HOUR_S)
        said = debian.run(f"python3 -m venv /v && . /v/bin/activate\n{wheel}\n{TRAIN}", HOUR_S)
    assert "all_reduce over 2 ranks: correct" in said


def test_the_demo() -> None:
    demo, *_ = (line for line in commands("README.md", "Try it")[0].splitlines() if "demo" in line)
    command = demo.partition("#")[0].strip()
    with BareDebian() as debian:
        said = debian.run(f"{command} --steps 6 --turns 1 --slow-steps 3", HOUR_S)
    assert "The same training" in said
