"""Each command line of the pages for the first hour is run by a test, or cannot be run by one."""

from __future__ import annotations

import ast

import pytest
from harness import TESTS
from page_commands import command, commands

PAGES = ("README.md", "docs/deploy.md", "docs/integrations.md")

# The beginning of a command, and why no test runs it as printed.
EXCEPTIONS = {
    "README.md": {
        "./dev gpu": "needs a GPU; test_gpu_command.py runs it as far as it goes without one",
    },
    "docs/deploy.md": {
        "kubectl apply": "needs a cluster; test_deploy.py checks the file against the schemas",
        "docker build": "needs Docker; `./dev wheel` runs the one step of the image",
        "docker run": "needs Docker; the image runs check.py, as the other launchers do",
    },
    "docs/integrations.md": dict.fromkeys(
        ("Q7X2_ATTACH=int8", "Q7X2_ATTACH='PowerSGD", "Q7X2_ATTACH='Sharded"),
        "train.py is the reader's; test_attach_all.py has the variable with other scripts",
    ),
}


def run_by_tests() -> set[str]:
    """The commands that tests have by ``@runs``."""
    found = set()
    for file in TESTS.glob("*/test_*.py"):
        text = file.read_text()
        if "page_commands" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            for call in getattr(node, "decorator_list", ()):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "runs":
                    page, *beginnings = (ast.literal_eval(each) for each in call.args)
                    found |= {command(page, each) for each in beginnings}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_each_command_is_run_by_a_test_or_has_a_reason(page: str) -> None:
    printed = set(commands(page))
    excepted = {command(page, each) for each in EXCEPTIONS.get(page, ())}
    run = run_by_tests()
    assert excepted & run == set(), "take it out of EXCEPTIONS"
    assert printed - run - excepted == set(), "give a test the mark @runs, or the command a reason"
