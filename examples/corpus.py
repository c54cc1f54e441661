"""Text that every machine has: the sources of Python's own standard library, as bytes."""

import hashlib
import os
import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

NOT_EVERYWHERE = {"site-packages", "dist-packages", "test", "tests"}  # left out: machines differ
VALIDATION_EVERY = 20  # of the files in order, each 20th is held out


class Text(NamedTuple):
    train: Tensor  # uint8, one dimension
    validation: Tensor
    digest: str  # of both: equal on every rank and after a resume, or the data is not the same


def standard_library() -> Text:
    return sources(Path(sysconfig.get_path("stdlib")), ".py")


def sources(root: Path, suffix: str) -> Text:
    """The files under `root` whose names end with `suffix`, in the order of their paths."""
    files: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in NOT_EVERYWHERE]
        files += [Path(folder, name) for name in names if name.endswith(suffix)]
    files.sort(key=lambda file: file.relative_to(root).as_posix())
    if len(files) < VALIDATION_EVERY:
        raise FileNotFoundError(
            f"expected at least {VALIDATION_EVERY} files {suffix} in {root}, got {len(files)}"
        )
    held_out = files[VALIDATION_EVERY - 1 :: VALIDATION_EVERY]
    kept = [file for i, file in enumerate(files, 1) if i % VALIDATION_EVERY]
    train, validation = (b"\n".join(f.read_bytes() for f in part) for part in (kept, held_out))
    digest = hashlib.sha256(train + validation).hexdigest()[:16]
    return Text(_tensor(train), _tensor(validation), digest)


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class Sampler:
    """Random windows of a text, without end.

    Every rank draws the same windows for the whole job and keeps its own rows, so the state is one
    generator's, the same on all ranks, and no byte travels to agree on a batch.
    """

    def __init__(
        self, text: Tensor, window: int, batch: int, rank: int, world_size: int, seed: int
    ) -> None:
        if len(text) <= window:
            raise ValueError(f"expected more than {window} bytes of text, got {len(text)}")
        self.text, self.window, self.batch = text, window, batch
        self.rank, self.world_size = rank, world_size
        self.generator = torch.Generator().manual_seed(seed)

    def next(self) -> tuple[Tensor, Tensor]:
        """This rank's inputs and, one byte on, its targets: int64, [batch, window]."""
        starts = torch.randint(
            len(self.text) - self.window, (self.world_size, self.batch), generator=self.generator
        )[self.rank]
        rows = self.text[starts[:, None] + torch.arange(self.window + 1)].long()
        return rows[:, :-1], rows[:, 1:]
