"""The site of the documentation: its pages are staged whole, and no link in it is broken."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
from harness import ROOT


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    subprocess.run([sys.executable, ROOT / "docs/site/stage.py", folder], check=True)
    return folder


def test_every_page_and_its_pictures_are_there(staged: pathlib.Path) -> None:
    pages = {path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(staged) for path in (staged / "docs").rglob("*.md")}
    assert [path.name for path in (staged / "changelog.d").iterdir()] == ["README.md"]
    for page in staged.rglob("*.md"):
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\((?!\w+:)([^)\s#]+)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_blocks_that_tests_run_are_plain_code(staged: pathlib.Path) -> None:
    assert "```bash\n" in (staged / "docs/seeing.md").read_text()
    assert not any(
        re.search(r"^```\w+ run$", page.read_text(), re.M) for page in staged.rglob("*.md")
    )


def navigation(entries: Any) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    values = entries.values() if isinstance(entries, dict) else entries
    return [page for value in values for page in navigation(value)]


def test_the_navigation_has_every_page(staged: pathlib.Path) -> None:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    listed = navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = {str(path.relative_to(staged)) for path in (staged / "docs").rglob("*.md")}
    pages |= {path.name for path in staged.glob("*.md")}
    assert set(listed) == pages
    assert len(listed) == len(set(listed))


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None,
    reason="no mkdocs: ./dev docs --site installs it",
)
def test_the_site_builds_without_a_broken_link(tmp_path: pathlib.Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "docs/site/stage.py", ROOT / "build/site-pages"], check=True
    )
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 'id="q7x2attach"' in (tmp_path / "site/docs/reference/q7x2.html").read_text()
