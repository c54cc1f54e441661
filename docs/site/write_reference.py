"""Writes docs/reference/ and the list of names in docs/reference.md, from docstrings.

    python docs/site/write_reference.py [--check]

It fails if a public name lacks a docstring, or a parameter a description. With ``--check`` it
writes nothing, and also fails if a page is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reference.pages import FOLDER, Pages


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    pages = Pages()
    problems = pages.problems()
    texts = {} if problems else pages.texts()
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    gone = [] if problems else [path for path in FOLDER.glob("*.md") if path not in texts]
    if arguments:
        problems += [f"{_short(path)}: run `./dev docs --write`" for path in [*stale, *gone]]
    else:
        FOLDER.mkdir(exist_ok=True)
        for path in stale:
            path.write_text(texts[path])
        for path in gone:
            path.unlink()
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


def _short(path: Path) -> str:
    return str(path.relative_to(FOLDER.parents[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
