"""The pages as text: one per package in docs/reference/, and the list of names in reference.md."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from reference.call import Call, Option
from reference.docstring import parse
from reference.entry import Entry, entry_of
from reference.markdown import markdown, names_in
from reference.names import TOP, public_modules, public_names

DOCS = Path(__file__).resolve().parents[2]
INDEX = DOCS / "reference.md"
FOLDER = DOCS / "reference"
_LIST = re.compile(r"(<!-- public names -->\n).*?(<!-- end of public names -->)", re.S)
_NOTE = "<!-- `./dev docs --write` makes this page from the docstrings of {module}. -->\n\n"


class Pages:
    """All entries, and the pages that they are on."""

    def __init__(self) -> None:
        names = list(public_names())
        classes = [each.value for each in names if inspect.isclass(each.value)]
        self.entries: list[Entry] = [entry_of(each, classes) for each in names]
        self._modules = {module.__name__: module for module in public_modules()}
        self._targets: dict[str, Entry] = {}
        for entry in self.entries:
            self._targets[entry.name.path] = entry
            self._targets.setdefault(entry.name.last, entry)
            self._targets |= dict.fromkeys(entry.name.aliases, entry)

    def problems(self) -> list[str]:
        """What is wrong with docstrings, one sentence each."""
        lacking = [
            f"{name}: it has no docstring"
            for name, module in self._modules.items()
            if not module.__doc__
        ]
        for name, module in self._modules.items():
            lacking += [f"{name}: {each}" for each in self._lost([module.__doc__ or ""])]
        for entry in self.entries:
            lost = self._lost(_texts(entry))
            lacking += entry.problems + [f"{entry.name.path}: {each}" for each in lost]
        return lacking

    def _lost(self, texts: list[str]) -> list[str]:
        """Names in docstrings that lead nowhere, or that have another path by now."""
        found = []
        for name in names_in(" ".join(texts)):
            owner, _, last = name.rpartition(".")
            if {name, owner} & self._targets.keys() or name.startswith("torch."):
                continue
            known = self._targets.get(last) or self._targets.get(owner.rpartition(".")[2])
            if known is not None:
                found.append(f"{name} is {known.name.path}")
            elif not name.startswith("q7x2."):  # else a file, a metric, a command
                found.append(f"{name} is not a public name")
        return found

    def texts(self) -> dict[Path, str]:
        """The text of every page by its file, the list of names included."""
        texts = {
            FOLDER / _file(module): self._page(module)
            for module in self._modules
            if self._of(module)
        }
        names = self._list()
        old = INDEX.read_text()
        texts[INDEX] = _LIST.sub(lambda match: f"{match[1]}\n{names}\n{match[2]}", old)
        return texts

    def _of(self, module: str) -> list[Entry]:
        found = [entry for entry in self.entries if entry.name.page == module]
        return sorted(found, key=lambda entry: entry.name.last.lower())

    def _link(self, name: str, page: str = "") -> str | None:
        entry = self._targets.get(name.removesuffix("()"))
        if entry is None:
            return None
        anchor = "#" + re.sub(r"[^\w-]", "", entry.name.path).lower()
        return anchor if entry.name.page == page else _file(entry.name.page) + anchor

    def _list(self) -> str:
        parts = []
        for module in self._modules:
            entries = self._of(module)
            if not entries:
                continue
            rows = [row for entry in entries for row in self._rows(entry)]
            title = f"### [{module}](reference/{_file(module)})"
            summary = parse(self._modules[module].__doc__).summary
            if module == TOP:
                summary = "What belongs to no package."
            about = markdown(summary, lambda _: None, docs="")
            table = "\n".join(["| name | what it is |", "| --- | --- |", *rows])
            parts.append(f"{title}\n\n{about}\n\n{table}\n")
        return "\n".join(parts)

    def _rows(self, entry: Entry) -> list[str]:
        """One row for each name of the entry."""
        link = f"reference/{self._link(entry.name.path)}"
        also = [
            f"| [`{alias}`]({link}) | Another name of `{entry.name.path}`. |"
            for alias in entry.name.aliases
        ]
        return [self._row(entry), *also]

    def _row(self, entry: Entry) -> str:
        first = re.split(r"(?<=\.)(?<!al\.)\s", entry.call.doc.summary)[0]
        text = " ".join(markdown(first, lambda _: None, docs="").split()).replace("|", "\\|")
        return f"| [`{entry.name.path}`](reference/{self._link(entry.name.path)}) | {text} |"

    def _page(self, module: str) -> str:
        text = inspect.getdoc(self._modules[module]) or ""
        if module == TOP:
            text = "What q7x2 has that belongs to no package."
        intro = markdown(text, lambda name: self._link(name, module))
        parts = [_NOTE.format(module=module) + f"# {module}", intro]
        for entry in self._of(module):
            parts += self._entry(entry, module)
        return "\n\n".join(part for part in parts if part) + "\n"

    def _entry(self, entry: Entry, page: str) -> list[str]:
        parts = [f"## `{entry.name.path}`"]
        parts += self._call(entry.call, page, shown=True)
        if entry.name.aliases:
            parts.append(f"**Also called** {', '.join(f'`{each}`' for each in entry.name.aliases)}")
        if entry.bases:
            linked = [self._linked(base, page) for base in entry.bases]
            parts.append(f"**Base**: {', '.join(linked)}")
        parts += self._options("Attributes", entry.attributes, page)
        parts += self._options("Properties", entry.properties, page)
        for method in entry.methods:
            bracket = method.signature or "()"
            parts.append(f"### `{method.title}{bracket}`")
            parts += self._call(method, page, shown=False)
        return parts

    def _linked(self, name: str, page: str) -> str:
        target = self._link(name, page)
        return f"[`{name}`]({target})" if target else f"`{name}`"

    def _call(self, call: Call, page: str, *, shown: bool) -> list[str]:
        def text_of(text: str, indent: str = "") -> str:
            return markdown(text, lambda name: self._link(name, page), indent)

        parts = []
        if shown and call.signature is not None:
            parts.append(f"```python\n{_wrapped(call.title + call.signature)}\n```")
        parts.append(text_of(call.doc.text))
        parts += self._options("Arguments", call.options, page)
        result = call.doc.section("Returns").get("", call.doc.section("Yields").get("", ""))
        if result or call.returns:
            kind = f" `{call.returns}`" if call.returns else ""
            text = text_of(f"Returns{kind}: {result}").rstrip(": ")
            parts.append(text.replace("Returns", "**Returns**", 1))
        errors = [Option(name, text) for name, text in call.doc.section("Raises").items()]
        return parts + self._options("Raises", errors, page)

    def _options(self, title: str, options: Sequence[Option], page: str) -> list[str]:
        if not options:
            return []
        lines = []
        for each in options:
            notes = [f"`{each.type}`"] if each.type else []
            notes += [f"default `{each.default}`"] if each.default else []
            about = f" ({', '.join(notes)})" if notes else ""
            target = self._link(each.name, page) if title == "Raises" else None
            shown = f":class:`{each.name}`" if target else f"``{each.name}``"
            first = f"{shown}{about}: {_sentence(each.text)}"
            lines.append("- " + markdown(first, lambda name: self._link(name, page), "  "))
        return [f"**{title}**", "\n".join(lines)]


def _texts(entry: Entry) -> list[str]:
    """All that docstrings say of a name."""
    docs = [call.doc for call in (entry.call, *entry.methods)]
    items = [text for doc in docs for each in doc.sections.values() for text in each.values()]
    options = [each.text for each in (*entry.attributes, *entry.properties)]
    return [doc.text for doc in docs] + items + options


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def _file(module: str) -> str:
    return f"{module.removeprefix(f'{TOP}.')}.md"


def _wrapped(call: str) -> str:
    return textwrap.fill(
        call, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
