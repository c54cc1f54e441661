"""What Prometheus would read from an endpoint of metrics."""

from __future__ import annotations

import urllib.request


def page_at(url: str) -> str:
    """The page of counters."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text
