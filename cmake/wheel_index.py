"""Wheels for several versions of torch in one folder, and a page that ``pip --find-links`` reads.

    python cmake/wheel_index.py add WHEEL FOLDER   # copy a wheel there, with its torch in its name
    python cmake/wheel_index.py page FOLDER        # write FOLDER/index.html

A wheel runs with one minor version of torch, and its metadata says so. Wheels for several of them
would all have one name. So each gets a local version, such as ``0.1.0a1+torch2.13``. pip takes the
one whose requirement fits the torch that the user asks for.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def torch_of(wheel: Path) -> str:
    """The minor version of torch that the wheel requires: ``"2.13"``. Raises ValueError."""
    for requirement in _metadata(wheel).get_all("Requires-Dist", []):
        if match := re.match(r"torch\s*\(?==(\d+\.\d+)\.\*", requirement):
            return match[1]
    raise ValueError(f"{wheel.name} does not require one minor version of torch")


def add(wheel: Path, folder: Path) -> Path:
    """Copy ``wheel`` into ``folder`` with the local version of its torch; return the new file."""
    name, version, *tags = wheel.stem.split("-")
    if "+" in version:
        raise ValueError(f"{wheel.name} has a local version already")
    local = f"{version}+torch{torch_of(wheel)}"
    old, new = f"{name}-{version}.dist-info", f"{name}-{local}.dist-info"
    target = folder / f"{'-'.join((name, local, *tags))}.whl"
    records = []
    with (
        zipfile.ZipFile(wheel) as source,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as result,
    ):
        for entry in source.infolist():
            if entry.filename == f"{old}/RECORD":
                continue
            data = source.read(entry)
            if entry.filename.startswith(f"{old}/"):
                entry.filename = new + entry.filename.removeprefix(old)
            if entry.filename == f"{new}/METADATA":
                old_line, new_line = f"\nVersion: {version}\n", f"\nVersion: {local}\n"
                data = data.replace(old_line.encode(), new_line.encode(), 1)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{entry.filename},sha256={digest},{len(data)}\n")
            result.writestr(entry, data)
        records.append(f"{new}/RECORD,,\n")
        result.writestr(f"{new}/RECORD", "".join(records))
    return target


def page(folder: Path) -> str:
    """The text of an index page for the wheels in ``folder``, with their hashes."""
    lines = []
    for wheel in sorted(folder.glob("*.whl")):
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        name = html.escape(wheel.name)
        lines.append(f'<a href="{name}#sha256={digest}">{name}</a> torch {torch_of(wheel)}<br>')
    title = "q7x2: wheels"
    return "\n".join([f"<!DOCTYPE html>\n<title>{title}</title>\n<h1>{title}</h1>", *lines, ""])


def main(arguments: list[str]) -> None:
    """Run one of the commands above."""
    match arguments:
        case ["add", wheel, folder]:
            Path(folder).mkdir(parents=True, exist_ok=True)
            print(add(Path(wheel), Path(folder)))
        case ["page", folder]:
            (Path(folder) / "index.html").write_text(page(Path(folder)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
