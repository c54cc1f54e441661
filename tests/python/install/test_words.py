"""Comments, docstrings and messages do not use fragments and words that readers stumble over.

A comment is a sentence, or a noun phrase that says what something is. It does not begin with "Of",
which leaves out the noun: "Number of input bytes that have arrived", not "Of the input, what has
arrived". Nor does it begin with "that" or "by which" behind code. "So many" is "this many" or "n",
"is none" is "is empty" or "is not a ...".

A comment in C++ names files that exist. The line that divides a file into sections is one line.
"""

from __future__ import annotations

import ast
import functools
import io
import itertools
import pathlib
import re
import tokenize
from collections import Counter
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[3]
# Folders that still have such words, by their beginnings. A folder goes when it has none, and none
# is added.
NOT_YET = ("csrc/transport/bootstrap/",)
# Folders in which comments behind code still begin with a relative pronoun.
RELATIVE_NOT_YET = (*NOT_YET, "csrc/transport/")
WORDS = (
    r"so many|so long(?! as\b)|(?<!there )is none(?! of\b)|comes to|what it is about"
    r"|in (?:the )?place of|comes? about|lets? go of|for want of|looks? around"
)
# In C++ these were names of q7x2's own; "beside" was the adjective of a private link.
CPP_WORDS = WORDS + "|beside|bury|buries|buried"
# "// Of" at the beginning of a line, and "code;  // of", a comment that shares its line.
CPP_OF = re.compile(r"^ *///?<? Of\b|^(?! *//).*\S +///?<? [Oo]f\b", re.M)
# "code;  // by which", which leaves out the noun as well.
CPP_RELATIVE = re.compile(
    r"^(?! *//).*\S +///?<? (?:that (?!of\b)|whose |(?:at|by|for|from|in|on|to|with) which ).*",
    re.M,
)
# clang-format breaks "// ----- title" where it is too long.
CPP_BROKEN_RULE = re.compile(r"^// -{5,} .*\n// \w.*", re.M)
CPP_COMMENT = re.compile(r"//.*")
CPP_FILE = re.compile(r"(?<![\w./<])(?:\w+/)+\w+\.(?:h|cpp|cu|py|md)\b")
# "Of" at the beginning of a line, or of what a docstring says of an argument: "size: Of a slice".
DOCSTRING_OF = re.compile(r"^\s*(\w+(, \w+)*: )?Of\b", re.M)
COMMENT_OF = re.compile(r"^#:? [Oo]f\b")


def words_in(text: str, words: str) -> Iterator[str]:
    """These words and what is around them, also if a line of a comment ends between two."""
    joined = re.sub(r"\s*\n\s*((///?<?|#) *)?", " ", text)
    for each in re.finditer(rf"\b({words})\b", joined):
        yield joined[max(each.start() - 40, 0) : each.end() + 40]


def in_cpp(text: str) -> Iterator[str]:
    for pattern in (CPP_OF, CPP_BROKEN_RULE):
        yield from (each.group().strip() for each in pattern.finditer(text))
    yield from words_in(text, CPP_WORDS)


def in_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstring = str(node.value.value)
            yield from (each.group().strip() for each in DOCSTRING_OF.finditer(docstring))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and COMMENT_OF.search(token.string):
            yield token.string
    yield from words_in(text, WORDS)


def files_in(text: str) -> Iterator[str]:
    """The files that the comments of C++ name with their folder."""
    for comment in CPP_COMMENT.findall(text):
        yield from CPP_FILE.findall(comment)


def cpp_files() -> dict[str, str]:
    """The C++ files of csrc, by path."""
    paths = (path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".h", ".cpp", ".cu"})
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}


@functools.cache
def found() -> dict[str, list[str]]:
    """What is wrong in csrc and python, by file."""
    python = itertools.chain(*((ROOT / "python").rglob(f"*.{kind}") for kind in ("py", "pyi")))
    lines = {path: list(in_cpp(text)) for path, text in cpp_files().items()}
    lines |= {str(path.relative_to(ROOT)): list(in_python(path.read_text())) for path in python}
    return {path: each for path, each in sorted(lines.items()) if each}


@pytest.mark.parametrize(
    "text",
    [
        "/// Of the input, what has arrived.",
        "size_t bytes = 0;  ///< of a slice",
        "// There are so many ranks.",
        "  // There are so\n  // many ranks.",
        "// -------------- whether the ranks agree on\n// it\n",
        '  throw Error("the file is none that this version reads");',
    ],
)
def test_words_are_found_in_cpp(text: str) -> None:
    assert list(in_cpp(text))


@pytest.mark.parametrize(
    "text",
    [
        '"""Of samples."""',
        'def f(x):\n    """Adds.\n\n    Args:\n        x: Of a slice.\n    """\n',
        "x = 1  # of a slice",
        "# Whoever waits for so long gives up.\n",
    ],
)
def test_words_are_found_in_python(text: str) -> None:
    assert list(in_python(text))


def test_plain_sentences_pass() -> None:
    assert not list(
        in_cpp("/// The length\n/// of a slice; null if there is none.\nint x = of(y);")
    )
    assert not list(
        in_python('def f():\n    """The mean\n    of samples, so long as it is None."""')
    )


def test_relative_pronouns_are_found() -> None:
    assert CPP_RELATIVE.search("int number = 0;  // by which others know it")
    assert CPP_RELATIVE.search("double seconds = 0;  ///< that the call took")
    assert not CPP_RELATIVE.search("int rate = 0;  ///< that of the slowest rank")
    assert not CPP_RELATIVE.search("  // that the call took\nint x = 0;  // which edges are coded")


def test_files_are_found() -> None:
    assert list(files_in("int x;  // see plan/ir/plan.h, <cuda.h> and (docs/faults.md).")) == [
        "plan/ir/plan.h",
        "docs/faults.md",
    ]


def test_comments_behind_code_have_a_noun() -> None:
    wrong = [
        f"{path}: {each.group().strip()}"
        for path, text in cpp_files().items()
        if not path.startswith(RELATIVE_NOT_YET)
        for each in CPP_RELATIVE.finditer(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_comments_name_files_that_exist() -> None:
    roots = [ROOT, ROOT / "csrc", ROOT / "tests" / "device"]
    wrong = [
        f"{path}: {name}"
        for path, text in cpp_files().items()
        for name in files_in(text)
        if not any((root / name).exists() for root in roots)
    ]
    assert not wrong, "\n".join(wrong)


def test_comments_say_it_plainly() -> None:
    wrong = {path: lines for path, lines in found().items() if not path.startswith(NOT_YET)}
    assert not wrong, "\n".join(f"{path}: {line}" for path, each in wrong.items() for line in each)


def test_folders_that_are_done_are_not_listed() -> None:
    left = Counter(each for path in found() for each in NOT_YET if path.startswith(each))
    assert set(left) == set(NOT_YET)
