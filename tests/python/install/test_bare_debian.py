"""Command lines of pages on a brand-new Debian, as they stand there."""

from __future__ import annotations

import bare_debian
import pytest
from bare_debian import BareDebian
from page_commands import command, runs

HOUR_S = 3600
pytestmark = [
    pytest.mark.timeout(3 * HOUR_S),
    pytest.mark.nightly("installs a Debian and compiles everything anew"),
    pytest.mark.beyond("gloo", "installs q7x2"),
    pytest.mark.skipif(bare_debian.why_not() is not None, reason=str(bare_debian.why_not())),
]

TRAIN = "torchrun --standalone --nproc-per-node 2 examples/deploy/check.py"
WORKS = "all_reduce over 2 ranks: correct"


@runs(
    "README.md",
    "apt-get install",
    "python3 -m venv",
    "pip install torch",
    "pip install --no-build-isolation",
    "q7x2 info",
)
def test_compiling_it_yourself(printed: str) -> None:
    with BareDebian() as debian:
        assert WORKS in debian.run(f"{printed}\n{TRAIN}", HOUR_S)


@runs("docs/deploy.md", "./dev wheel", "pip install --find-links dist", "q7x2 info")
def test_the_wheel(printed: str) -> None:
    make, install, info = printed.splitlines()
    environment = "python3 -m venv /v && . /v/bin/activate"
    with BareDebian() as debian:
        debian.run(make, HOUR_S)
        said = debian.run(f"{environment}\n{install}\n{info}\n{TRAIN}", HOUR_S)
    assert WORKS in said


@runs("README.md", "./dev demo", "./dev test")
def test_the_demo_and_some_tests(printed: str) -> None:
    demo, tests = printed.splitlines()
    with BareDebian() as debian:
        said = debian.run(f"{demo} --steps 6 --turns 1 --slow-steps 3", HOUR_S)
        assert "The same training" in said
        assert " passed" in debian.run(f"{tests} test_links_lead", HOUR_S)


@runs(
    "docs/integrations.md",
    "pip freeze",
    "pip install -c torch.txt",
    "torchrun --nproc-per-node 2 examples/integrations",
    "python -m pytest",
    "pip install fbgemm",
    "pip install --no-deps torchrec",
)
def test_the_libraries_of_integrations(printed: str) -> None:
    *libraries, accelerate, tests, fbgemm, torchrec = printed.splitlines()
    packages = command("README.md", "apt-get install")
    environment = [command("README.md", each) for each in ("python3 -m venv", "pip install torch")]
    steps = [packages, *environment, *libraries, accelerate, fbgemm, torchrec, tests]
    with BareDebian() as debian:
        said = debian.run("\n".join(steps), 2 * HOUR_S)
    assert "Accelerate: 2 ranks on q7x2 have equal parameters" in said
    assert " passed" in said
    assert "skipped" not in said
