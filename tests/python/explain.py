"""What is known about a test that failed: its ranks, their stacks, flight records and logs.

An ``Explanation`` has sections. Each has one line that says the most important thing, and details.
``layout`` fits explanations of any length into a number of lines.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import stack_text
from rank_outcomes import Outcome

WIDTH = 220  # a longer line is cut
_LEAST = 3  # fewer lines of a section say less than its one line
_LOG_LINES = 12  # of each rank


@dataclasses.dataclass
class Section:
    """One aspect of a failure: one line, and blocks of lines with the details.

    Where room is short, a block keeps its first line, and the last ones (``keep_end``) or the next.
    """

    name: str
    short: str
    blocks: list[list[str]]
    keep_end: bool = False

    def lines(self) -> int:
        return sum(map(len, self.blocks))

    def shortened(self, room: int) -> list[str]:
        """At most ``room`` lines of the details."""
        kept = []
        for block, rows in zip(self.blocks, _share(room, list(map(len, self.blocks))), strict=True):
            if rows >= len(block) or not self.keep_end:
                kept += block[:rows]
            elif rows > 0:
                kept += [block[0], *block[len(block) - rows + 1 :]]
        return kept


@dataclasses.dataclass
class Explanation:
    """Of one failed test. It travels from a worker to the process that prints it."""

    test: str
    head: str  # when it failed, how long it took, the machine's load
    command: str  # repeats the test
    sections: list[Section]
    path: str = ""  # of the whole text

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Explanation:
        sections = [Section(**section) for section in values["sections"]]
        return cls(**{**values, "sections": sections})


def rank_sections(outcomes: Sequence[Outcome]) -> list[Section]:
    """Sections about the ranks of a test. A section that is empty is left out."""
    sections = [_ranks(outcomes), _stacks(outcomes), _flight(outcomes), _logs(outcomes)]
    return [section for section in sections if section.short]


def layout(explanation: Explanation, budget: int) -> list[str]:
    """Return the explanation in at most ``budget`` lines, or in three if that is less."""
    head = f"== {explanation.test} ({explanation.head})"
    head += f", see {explanation.path}" if explanation.path else ""
    lines = [head, f"   again: {explanation.command}"]
    sections = _merged(explanation.sections, max(1, budget - len(lines)))
    room = _share(budget - len(lines) - len(sections), [s.lines() for s in sections])
    for section, rows in zip(sections, room, strict=True):
        if rows < max(1, min(_LEAST, section.lines())):
            lines.append(cut(f"   {section.name}: {section.short}"))
            continue
        lines.append(f"   {section.name}:")
        lines += [cut(f"     {line}") for line in section.shortened(rows)]
    return lines


def whole_text(explanation: Explanation) -> str:
    """Return everything, for a file."""
    parts = [explanation.test, explanation.head, f"again: {explanation.command}"]
    for section in explanation.sections:
        detail = [line for block in section.blocks for line in block] or [section.short]
        parts.append(f"\n{section.name}:\n" + textwrap.indent("\n".join(detail), "  "))
    return "\n".join(parts) + "\n"


def cut(line: str, width: int = WIDTH) -> str:
    return line if len(line) <= width else line[: width - 3] + "..."


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _merged(sections: Sequence[Section], most: int) -> Sequence[Section]:
    """At most ``most`` sections; the last ones share a line."""
    if len(sections) <= most:
        return sections
    kept, rest = list(sections[: most - 1]), sections[most - 1 :]
    room = (WIDTH - 20) // len(rest) - 2
    texts = [cut(f"{section.name}: {section.short}", room) for section in rest[1:]]
    kept.append(Section(rest[0].name, "; ".join([cut(rest[0].short, room), *texts]), []))
    return kept


def _share(lines: int, wanted: Sequence[int]) -> list[int]:
    """Divides ``lines`` among sections: none gets more than it wants, and small ones come first."""
    shares = [0] * len(wanted)
    left = max(0, lines)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for position, index in enumerate(order):
        shares[index] = min(wanted[index], left // (len(wanted) - position))
        left -= shares[index]
    return shares


def _by_text(texts: Iterable[tuple[int, str]]) -> list[tuple[str, str]]:
    """Ranks that say the same, as one."""
    ranks: dict[str, list[int]] = {}
    for rank, text in texts:
        ranks.setdefault(text, []).append(rank)
    return [(", ".join(map(str, numbers)), text) for text, numbers in ranks.items()]


def _ranks(outcomes: Sequence[Outcome]) -> Section:
    said = []
    for outcome in outcomes:
        text = outcome.kind
        if outcome.exitcode is not None:
            text += f" with {outcome.exitcode}"
        if outcome.error_type:
            text += f" {outcome.error_type}: {outcome.error.strip().partition(chr(10))[0]}"
        said.append((outcome.rank, text))
    groups = _by_text(said)
    blocks = [[f"rank {ranks}: {text}"] for ranks, text in groups]
    room = max(30, (WIDTH - 20) // max(1, len(groups)) - 8)
    short = "; ".join(f"{ranks} {cut(text, room)}" for ranks, text in groups)
    return Section("ranks", short, blocks)


def _stacks(outcomes: Sequence[Outcome]) -> Section:
    shorts, details = [], []
    for outcome in outcomes:
        if not outcome.trace:
            continue
        if outcome.error_type:
            place = stack_text.raised_at(outcome.trace)
            shorts.append((outcome.rank, " < ".join(place.split(" < ")[:3])))
            lines = [place, *stack_text.error_lines(outcome.trace)[:15]]
        else:
            lines = [*stack_text.thread_places(outcome.trace), last_line(outcome.trace)]
            shorts.append((outcome.rank, " < ".join(lines[0].split(" < ")[:3])))
        details.append((outcome.rank, "\n".join(lines)))
    blocks = []
    for ranks, text in _by_text(details):
        first, *rest = text.splitlines()
        blocks.append([f"rank {ranks}: {first}", *(f"  {line}" for line in rest)])
    short = "; ".join(f"{ranks} {cut(text, 100)}" for ranks, text in _by_text(shorts))
    return Section("stacks", short, blocks)


def _flight(outcomes: Sequence[Outcome]) -> Section:
    blocks, last = [], []
    for outcome in outcomes:
        lines = outcome.flight_lines()
        if lines:
            blocks.append([f"rank {outcome.rank}:", *(f"  {line}" for line in lines)])
            operations = [line for line in lines if line.startswith("#")]
            last.append((outcome.rank, cut((operations or lines)[-1], 90)))
    short = "; ".join(f"{ranks} {text}" for ranks, text in _by_text(last))
    return Section("flight records", short, blocks, keep_end=True)


def _logs(outcomes: Sequence[Outcome]) -> Section:
    blocks, last = [], []
    for outcome in outcomes:
        lines = [line for line in outcome.log.splitlines() if line.strip()]
        if lines:
            shown = lines[-_LOG_LINES:]
            blocks.append([f"rank {outcome.rank}:", *(f"  {line}" for line in shown)])
            last.append((outcome.rank, cut(lines[-1].strip(), 100)))
    short = "; ".join(f"{ranks} {text}" for ranks, text in _by_text(last))
    return Section("logs", short, blocks, keep_end=True)
