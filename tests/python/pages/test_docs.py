"""The documentation holds: links lead somewhere, and examples marked to be run do run.

A fenced block is run where its first line is ```` ```python run ```` or ```` ```bash run ````; such
a block stands alone, and runs in an empty directory with this environment's programs on PATH.
Tables of figures between `<!-- table: NAME -->` comments are those of benchmarks/results.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
from dataclasses import dataclass

import interpreters
import pytest
import q7x2
import write_figures
from harness import ROOT, script

NAME = re.compile(r"(?<![\w/.-])q7x2((?:\.[A-Za-z_]\w*)+)(?![\w/-])")
# Names of files, of capsules, of spans with their attributes, and what only torchft has.
NO_NAMES = {
    *(".md", ".toml", ".codec_kernels", ".stream_calls", ".step", ".rank", ".loss"),
    *(".torchft", ".torchft.ProcessGroupQ7x2"),
}
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

FENCE = re.compile(r"^(?P<ticks>```+)(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=ticks)\s*$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)")
# Behind a table a heading needs an empty line, or the site takes it for a row.
HEADING = re.compile(r"(?:\A|(?<=\n\n))#+\s+(?P<title>.+?)\s*$", re.M)


@dataclass(frozen=True)
class Example:
    page: pathlib.Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def examples() -> list[Example]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for fence in FENCE.finditer(text):
            words = fence["info"].split()
            if words[1:] == ["run"]:
                line = text.count("\n", 0, fence.start()) + 1
                found.append(Example(page, line, words[0], fence["code"]))
    return found


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors GitHub gives the headings of ``page``."""
    titles = (match["title"] for match in HEADING.finditer(FENCE.sub("", page.read_text())))
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "migrate.md"],  # which has old names
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_names_of_python_exist(page: pathlib.Path) -> None:
    missing = []
    for match in NAME.finditer(page.read_text()):
        value: object = q7x2
        for part in match[1].split(".")[1:]:
            value = getattr(value, part, None)
        if value is None and match[1] not in NO_NAMES:
            missing.append(f"q7x2{match[1]}")
    assert not missing, f"{page.name}: there is no {', '.join(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    broken = []
    for link in LINK.finditer(FENCE.sub("", page.read_text())):
        target, _, anchor = link["target"].partition("#")
        if re.match(r"\w+:", target):
            continue  # another site: not ours to keep alive, and tests need no network
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(link["target"])
    assert broken == []


def test_every_test_file_is_in_the_folder_of_its_topic() -> None:
    tests = ROOT / "tests/python"
    astray = sorted(path.name for path in tests.glob("test_*.py"))
    assert astray == [], "move them into the folder of their topic (the table of docs/testing.md)"
    page = (ROOT / "docs/testing.md").read_text()
    rows = re.findall(r"^\|[^|]*\| `(\w+)/` \|(.*)\|$", page, re.M)
    listed = [
        f"{folder}/test_{name}.py" for folder, row in rows for name in re.findall(r"`(\w+)`", row)
    ]
    there = [str(path.relative_to(tests)) for path in tests.glob("*/test_*.py")]
    assert sorted(listed) == sorted(there), "the table of docs/testing.md lists every test file"


def test_tables_of_figures_are_those_of_the_results() -> None:
    used = set()
    for page in PAGES:
        text = page.read_text()
        used |= set(re.findall(r"<!-- table: ([\w-]+) -->", text))
        assert text == write_figures.with_tables(text), f"{page.name}: run `./dev docs --write`"
    assert set(write_figures.TABLES) <= used


@pytest.mark.parametrize("example", examples(), ids=str)
def test_examples_run(example: Example, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    programs = interpreters.environment()
    if example.language == "python":  # in a copy of an interpreter that has imported torch
        source = f"import os\nos.chdir({str(folder)!r})\n{example.code}"
        with script(source, 1, tmp_path, programs) as (program,):
            result = program.result(240)
        assert result.returncode == 0, f"{example}\n{result.describe()}"
        return
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example.code],
        cwd=folder,
        env=os.environ | programs,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{example}\n{done.stdout}\n{done.stderr}"
