"""Files that only this user may read and write (0600), in folders of the same kind (0700).

Other users may have put links where a file shall be. None is followed in the last part of a path.
"""

from __future__ import annotations

import os
import pathlib


def make_folder(folder: pathlib.Path) -> None:
    """Make a folder and those above it that are missing; one that is there stays as it is.

    Raises:
        OSError: It cannot be made, or something else has the name.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def create(file: pathlib.Path) -> None:
    """Make an empty file.

    Raises:
        FileExistsError: Something has the name, be it a link that leads nowhere.
        OSError: It cannot be made.
    """
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def replace(file: pathlib.Path, data: bytes) -> None:
    """Write a file that appears under its name when it is complete; it replaces what was there.

    Raises:
        OSError: It cannot be written. Then nothing is left behind.
    """
    draft = file.with_name(f"{file.name}.part{os.getpid()}")
    draft.unlink(missing_ok=True)  # left by an earlier process of this number, or a link
    try:
        create(draft)
        draft.write_bytes(data)
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
