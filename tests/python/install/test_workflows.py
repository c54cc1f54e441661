"""The workflows of .github: actions are pinned, versions are those that are promised."""

from __future__ import annotations

import re
from typing import Any

import pytest
from harness import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.name))
def test_actions_are_pinned_to_a_commit_and_say_its_version(path: Any) -> None:
    used = re.findall(r"uses: *(.*)", path.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.name))
def test_jobs_may_read_only_unless_they_say_more(path: Any) -> None:
    assert load(path.name)["permissions"] == {"contents": "read"}


def test_the_nightly_matrix_has_the_promised_versions() -> None:
    matrix = load("versions.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["torch"] == ["2.11", "2.13", "newest"]
    promised = re.findall(r"Python :: (3\.\d+)", PROJECT)
    assert matrix["python"] == promised
    assert load("release.yml")["jobs"]["wheels"]["strategy"]["matrix"]["python"] == promised


def test_the_changelog_has_a_section_for_the_version() -> None:
    version = re.search(r'^version = "(.+)"$', PROJECT, re.M)
    assert version is not None
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {version[1]} (" in changelog
    kinds = {"added", "changed", "fixed", "removed"}
    for fragment in (ROOT / "changelog.d").glob("*"):
        kind = fragment.name.split(".")[-2]
        assert fragment.name == "README.md" or kind in kinds, fragment
