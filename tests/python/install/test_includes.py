"""The folders and files of ``csrc``: dependencies point down, and none form a circle.

A unit is a header with the source file of its name: `plan/ir/plan.h` and `plan.cpp`.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Mapping, Set

ROOT = pathlib.Path(__file__).parents[3]
SOURCES = ROOT / "csrc"

Graph = Mapping[str, Set[str]]


@functools.cache
def units() -> Graph:
    """What each unit of ``csrc`` includes of the others."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu"}:
            continue
        unit = str(path.relative_to(SOURCES).with_suffix(""))
        included = re.findall(r'^#include "([\w/]+)\.h"', path.read_text(), re.M)
        others = {each for each in included if (SOURCES / f"{each}.h").exists()}
        found.setdefault(unit, set()).update(others - {unit})
    return found


def folders(graph: Graph) -> Graph:
    found: dict[str, set[str]] = {}
    for unit, included in graph.items():
        folder = str(pathlib.PurePath(unit).parent)
        others = {str(pathlib.PurePath(each).parent) for each in included}
        found.setdefault(folder, set()).update(others - {folder})
    return found


def circles(graph: Graph) -> list[list[str]]:
    """The sets of nodes that reach each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_nodes: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        open_nodes.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in open_nodes:
                lowest[node] = min(lowest[node], index[other])
        if lowest[node] == index[node]:
            at = open_nodes.index(node)
            circle = open_nodes[at:]
            del open_nodes[at:]
            if len(circle) > 1:
                found.append(sorted(circle))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a", "e"}}
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_includes_form_no_circle() -> None:
    found = circles(folders(units())) + circles(units())
    assert not found, "\n".join(" ".join(circle) for circle in found)
