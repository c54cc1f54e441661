"""The state of the sources that a result belongs to."""

from __future__ import annotations

import hashlib
import subprocess

from .paths import ROOT

# What the runner itself writes into the checkout.
WRITTEN = ("docs/nightly.md",)


def describe() -> str:
    """The abbreviated commit; with ``+`` and a digest of the changes if files differ from it."""
    commit = _git("rev-parse", "--short=10", "HEAD").strip()
    left_out = [f":(exclude){path}" for path in WRITTEN]
    changes = _git("diff", "HEAD", "--", ".", *left_out)
    return f"{commit}+{hashlib.sha1(changes.encode()).hexdigest()[:6]}" if changes else commit


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True)
    return done.stdout.decode(errors="replace")
