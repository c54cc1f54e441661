"""``python -m tests.runner.integrations``: an environment with the libraries of the extra.

Its own packages come before those of the environment that runs this. So torch is not installed a
second time, and nothing that a library brings along changes the usual environment.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv

from .paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = ROOT / "build" / "nightly" / "integrations"

# A library may bring along another torch, which the compiled module does not fit.
CHECK = "import torch; from q7x2._core.extension import load; load(); print(torch.__version__)"


def main() -> int:
    """Returns the exit code of what failed, and prints its reason last."""
    if not (FOLDER / "bin" / "python").exists():
        venv.create(FOLDER, with_pip=True)
    _share_packages()
    python = str(FOLDER / "bin" / "python")
    libraries = _extra()
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *libraries]
    for command in (pip, [python, "-c", CHECK]):
        code = subprocess.run(command, cwd=ROOT).returncode
        if code:
            return code
    return 0


def _share_packages() -> None:
    """Everything that this interpreter has installed is visible there, behind its own packages."""
    names = {"base": str(FOLDER), "platbase": str(FOLDER)}
    theirs = sysconfig.get_path("purelib", vars=names)
    ours = sysconfig.get_path("purelib")
    line = f"import site; site.addsitedir({ours!r})\n"
    (FOLDER / theirs / "shared.pth").write_text(line)


def _extra() -> list[str]:
    """What pyproject.toml lists as ``integrations``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = project["optional-dependencies"]["integrations"]
    return found


if __name__ == "__main__":
    sys.exit(main())
