"""Dumps, ledgers and the catalogue are this user's alone, and no link is followed to write them."""

from __future__ import annotations

import os
import pathlib
import stat

import pytest
import q7x2
import torch
import torch.distributed as dist
from q7x2._core.private_files import create, make_folder, replace


def mode_of(path: pathlib.Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(autouse=True)
def open_umask() -> object:
    """Modes must not depend on what the user's umask leaves."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_folders_and_files_are_private(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "a" / "b"
    make_folder(folder)
    assert mode_of(folder) == mode_of(folder.parent) == 0o700
    replace(folder / "file", b"1")
    replace(folder / "file", b"2")
    assert (folder / "file").read_bytes() == b"2"
    assert mode_of(folder / "file") == 0o600
    create(folder / "other")
    assert mode_of(folder / "other") == 0o600


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    make_folder(tmp_path / "a")
    assert mode_of(tmp_path / "a") == 0o755


def test_no_link_is_followed(tmp_path: pathlib.Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "file").symlink_to(precious)
    (tmp_path / f"file.part{os.getpid()}").symlink_to(precious)
    replace(tmp_path / "file", b"ours")
    assert precious.read_text() == "precious"
    assert (tmp_path / "file").read_text() == "ours"
    assert not (tmp_path / "file").is_symlink()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(FileExistsError):
        create(tmp_path / "nowhere")
    assert not (tmp_path / "missing").exists()


@pytest.mark.beyond("gloo", "it has no flight recorder")
@pytest.mark.ranks(2)
def test_dumps_are_private(world_size: int, shared: str) -> None:
    dist.all_reduce(torch.ones(4))
    path = pathlib.Path(shared) / f"dump{dist.get_rank()}.json"
    precious = path.with_suffix(".precious")
    precious.write_text("precious")
    path.symlink_to(precious)
    q7x2.dump(path)
    assert mode_of(path) == 0o600
    assert precious.read_text() == "precious"
