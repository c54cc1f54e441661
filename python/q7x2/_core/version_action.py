"""``q7x2 --version``: the versions of q7x2, torch and UCX, one per line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class VersionAction(argparse.Action):
    """Prints the versions and ends the program, as argparse's own action does.

    argparse's action takes a text that is made beforehand, so each command would load torch. The
    exit status is 1 if torch or UCX cannot be used; its line has the reason.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, **keywords: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **keywords)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from importlib.metadata import version

        status = 0
        print("q7x2", version("q7x2"))
        for name, version_of in (("torch", _torch), ("UCX", _ucx)):
            try:
                print(name, version_of())
            except (ImportError, RuntimeError) as error:
                print(f"{name} cannot be used: {error}")
                status = 1
        parser.exit(status)


def _torch() -> str:
    import torch

    return str(torch.__version__)


def _ucx() -> str:
    from q7x2._core import extension, ucx

    info = extension.load().ucx_info()
    return f"{info['version']} ({ucx.load().origin}, {info['library']})"
