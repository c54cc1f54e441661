"""What was measured behind a file of figures: compressed JSON beside it, the same bytes each time.

`bars.json` has the figures of each row. `bars.raw.json.gz` has, by the name of the row, a list of
cells: one per collective and size, with the quantiles and the medians of all turns of each backend.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Cells = dict[str, list[dict[str, Any]]]


def raw_path(figures: Path) -> Path:
    """The file with the measurements behind `figures`."""
    return figures.with_suffix(".raw.json.gz")


def read_raw(path: Path) -> Cells:
    """The cells of each row, by its name."""
    cells: Cells = json.loads(gzip.decompress(path.read_bytes()))
    return cells


def write_raw(path: Path, cells: Cells) -> None:
    """Replace `path`. Its bytes depend on the cells only, and not on the time."""
    text = json.dumps(cells, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
