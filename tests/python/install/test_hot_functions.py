"""The module's layout: the functions of a small call lie side by side (cmake/hot_functions.py)."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from q7x2 import _C

SCRIPT = Path(__file__).parents[3] / "cmake" / "hot_functions.ld"
KIB = 1024


def test_functions_of_small_calls_lie_side_by_side():
    if shutil.which("nm") is None or shutil.which("readelf") is None:
        pytest.skip("no nm and readelf: apt-get install binutils")
    sections = subprocess.run(
        ["readelf", "-SW", _C.__file__], capture_output=True, text=True
    ).stdout
    if ".text.q7x2_hot" not in sections:
        pytest.skip("the linker of this build takes no linker script")
    symbols = subprocess.run(["nm", _C.__file__], capture_output=True, text=True, check=True).stdout
    if not symbols:
        pytest.skip("the module has no symbols any more")
    lines = [line.split() for line in symbols.splitlines() if not line.startswith(" ")]
    address = {name: int(at, 16) for at, _, name in lines}
    names = re.findall(r"\(\.text\.(\S+)\)", SCRIPT.read_text())
    found = [name for name in names if name in address]
    missing = sorted(set(names) - set(found))
    assert len(found) >= 0.9 * len(names), f"run cmake/hot_functions.py again: no {missing}"
    addresses = sorted(address[name] for name in found)
    assert addresses[-1] - addresses[0] < 512 * KIB
