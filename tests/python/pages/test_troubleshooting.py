"""docs/troubleshooting.md quotes messages that the code has."""

from __future__ import annotations

import re

from harness import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
OF_PYTORCH = ("environment variable RANK expected",)


def sources() -> str:
    """The text of C++ and Python, with the pieces of each string literal joined."""
    files = [*(ROOT / "csrc").rglob("*.cpp"), *(ROOT / "python").rglob("*.py")]
    text = "\n".join(path.read_text() for path in files)
    return re.sub(r'"\s*\n\s*f?"', "", text)


def quotations() -> list[str]:
    """The code in the first column of the tables, if it is a sentence and not a name."""
    cells = re.findall(r"^\| ([^|]+) \|", PAGE, re.M)
    spans = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
    return [span for span in spans if span.count(" ") > 2 and span not in OF_PYTORCH]


def pieces(quotation: str) -> list[str]:
    """What a message says between the parts that differ from case to case."""
    variable = (
        r"…|\(.*?…\)|\b\d[\w.:-]*( s for)?|\branks?\b|\b(?:is|are)\b|\(pid .*?\)|,|all_reduce"
    )
    parts = [(part or "").strip(" :(") for part in re.split(variable, quotation)]
    return [part for part in parts if part.count(" ") > 0 and part != "s for"]


def test_quoted_messages_are_those_of_the_code() -> None:
    assert len(quotations()) > 15
    code = sources()
    absent = {
        quotation: piece
        for quotation in quotations()
        for piece in pieces(quotation)
        if piece not in code
    }
    assert absent == {}
