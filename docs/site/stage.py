"""Copies what the site shows into a folder, with the layout of the repository.

    python docs/site/stage.py FOLDER

MkDocs wants all pages below one folder, but README.md, CHANGELOG.md and the reports of benchmarks
lie outside of docs/. The copy has every page, and every file that a page links to. So links work on
the site as they do in the repository.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]+)")
# What the tests run, write and compare. The site would not take it for the beginning of a fence.
RUN = re.compile(r"^(```+\w+) (?:run|step(?: lab)?|file \S+|output)$", re.M)


def pages() -> list[Path]:
    """The Markdown files of the repository, without those of its hosting site.

    Fragments of the changelog are not pages: a release puts them into CHANGELOG.md.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [name for name in listed.stdout.split() if not name.startswith(".")]
    return [ROOT / name for name in names if not re.match(r"changelog\.d/(?!README\.md)", name)]


def linked_files(page: Path) -> list[Path]:
    """Files of the repository that ``page`` links to, beside other pages."""
    targets = (page.parent / target for target in LINK.findall(page.read_text()))
    return [target.resolve() for target in targets if target.is_file() and target.suffix != ".md"]


def stage(folder: Path) -> None:
    """Fill ``folder``, which is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in pages():
        for file in (page, *linked_files(page)):
            target = folder / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        copy = folder / page.relative_to(ROOT)
        copy.write_text(RUN.sub(r"\1", page.read_text()))
    style = folder / "docs" / "site" / "site.css"
    style.parent.mkdir(parents=True)
    shutil.copyfile(ROOT / "docs" / "site" / "site.css", style)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    stage(Path(sys.argv[1]))
