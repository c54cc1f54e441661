"""What rank 0 shows and writes while training: a progress bar and a log of JSON lines."""

import json
from collections import deque
from pathlib import Path
from statistics import median
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

WINDOW = 20  # steps that the speed and the communication share on the bar are medians of


def read_log(path: Path) -> list[dict[str, float]]:
    """The records of a log; a last line that is still being written is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Report:
    """A context manager; `path` gets one JSON object a line.

    Records after step `first` are dropped from a log that exists already: a resumed run leaves the
    log of a run that was never stopped.
    """

    def __init__(self, path: Path | None, title: str, first: int, steps: int) -> None:
        self._recent: deque[dict[str, float]] = deque(maxlen=WINDOW)
        self._file = None
        if path is not None:
            kept = [record for record in read_log(path) if record["step"] <= first]
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", buffering=1)  # by lines, so that others can follow it
            for record in kept:
                self._write(record)
        self._console = Console()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=steps, completed=first, text="")

    def __enter__(self) -> "Report":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if self._file:
            self._file.close()

    def step(self, record: dict[str, float]) -> None:
        self._write(record)
        self._recent.append(record)
        self._progress.update(self._task, completed=record["step"], text=self._summary())

    def validation(self, record: dict[str, float]) -> None:
        self._write(record)
        text = f"step {record['step']}: validation loss {record['validation_loss']:.3f}"
        if self._recent and not self._console.is_terminal:  # there, the bar says the rest
            text += f", {self._summary()}"
        self._console.print(text, highlight=False)

    def _summary(self) -> str:
        seconds = median(record["seconds"] for record in self._recent)
        communication = median(record["communication_seconds"] for record in self._recent)
        speed = median(record["tokens_per_second"] for record in self._recent)
        loss = self._recent[-1]["loss"]
        share = communication / seconds
        return f"loss {loss:.3f}, {speed:,.0f} tokens/s, communication {share:.0%}"

    def _write(self, record: dict[str, float]) -> None:
        if self._file:
            self._file.write(json.dumps(record) + "\n")
