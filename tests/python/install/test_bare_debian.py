"""Command lines of pages on a brand-new Debian, as they stand there."""

from __future__ import annotations

from collections.abc import Iterator

import bare_debian
import pytest
from bare_debian import BareDebian
from page_commands import command, runs
from tutorial_page import Tutorial, expect_lines

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


@pytest.fixture(scope="module")
def demonstrated() -> Iterator[tuple[BareDebian, str]]:
    """A Debian on which the demo has compiled the module, and what the demo has printed."""
    with BareDebian() as debian:
        yield debian, debian.run(command("docs/tutorial.md", "./dev demo"), HOUR_S)


@runs("README.md", "./dev demo", "./dev test")
def test_the_demo_and_some_tests(printed: str, demonstrated: tuple[BareDebian, str]) -> None:
    demo, tests = printed.splitlines()
    debian, said = demonstrated
    assert demo == command("docs/tutorial.md", "./dev demo")
    assert "The same training" in said
    assert " passed" in debian.run(f"{tests} test_links_lead", HOUR_S)


def test_the_tutorial(demonstrated: tuple[BareDebian, str]) -> None:
    debian, _ = demonstrated
    tutorial = Tutorial()
    tutorial.write_files(debian.checkout)
    set_up = [command("docs/tutorial.md", each) for each in (". .venv", "export OMP_NUM_THREADS")]
    end = "=== the end of a step ==="
    # In one shell: virtual machines stay up from step to step.
    steps = [f"{step.code}echo '{end}'" for step in tutorial.steps]
    said = debian.run("\n".join([*set_up, *steps]), HOUR_S).split(f"{end}\n")
    for step, output in zip(tutorial.steps, said, strict=False):
        expect_lines(step.shown, output)
    assert len(said) == len(tutorial.steps) + 1


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
