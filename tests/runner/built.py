"""Builds the targets that tests need, one after another, while other tests already run."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from .paths import BUILD, RESULTS


class Builder:
    """Runs the compiler at low priority in a thread of its own; ``wait`` waits for a target."""

    def __init__(self, targets: Sequence[str], jobs: int) -> None:
        self._jobs = jobs
        self._done = {target: threading.Event() for target in targets}
        self._failed: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        RESULTS.mkdir(parents=True, exist_ok=True)
        for target in targets:
            self.mark(target).touch()
        self._thread = threading.Thread(target=self._run, name="builder", daemon=True)
        self._thread.start()

    def wait(self, target: str) -> str:
        """What the compiler said if ``target`` could not be built, or nothing."""
        self._done[target].wait()
        return self._failed.get(target, "")

    def mark(self, target: str) -> Path:
        """A file that exists until ``target`` is built, for other processes."""
        return RESULTS / f"building-{target}"

    def stop(self) -> None:
        """Ends the compiler."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def _run(self) -> None:
        for target, event in self._done.items():
            log = RESULTS / f"build-{target}.log"
            with log.open("wb") as out:
                self._process = subprocess.Popen(
                    [
                        "nice",
                        "-n",
                        "5",
                        "cmake",
                        "--build",
                        str(BUILD),
                        "-j",
                        str(self._jobs),
                        "--target",
                        target,
                    ],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
                code = self._process.wait()
            if code != 0:
                lines = log.read_text(errors="replace").splitlines()
                self._failed[target] = "\n".join(lines[-60:])
            self.mark(target).unlink()
            event.set()
