"""The page of ``q7x2 report`` in Chromium: without a network, light and dark, wide and narrow."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from ledger_files import Training
from q7x2 import cli

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a namespace without a network needs root"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Of two jobs, one with a rank that comes late."""
    directory = tmp_path_factory.mktemp("report")
    jobs = []
    for name, late in (("fast", {}), ("slow", {2: ("compute", 20.0)})):
        job = directory / name
        job.mkdir()
        Training(late=late, loss_every=2, watts=100).write(job)
        jobs.append(str(job))
    path = directory / "report.html"
    assert cli.main(["report", *jobs, "--out", str(path)]) == 0
    return path


def run_browser(page: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With a profile of its own, in a network namespace of its own, which has no network."""
    command = [
        "unshare",
        "--net",
        str(BROWSER),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'profile'}",
        *arguments,
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_a_network_and_without_errors(
    page: pathlib.Path, width: int, scheme: str
) -> None:
    matplotlib = pytest.importorskip("matplotlib.image")
    picture = page.parent / f"{scheme}-{width}.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    done = run_browser(page, f"--window-size={width},2000", f"--screenshot={picture}", *dark)
    assert done.returncode == 0, done.stderr
    # The browser's own pages say something now and then.
    assert not re.search(r"CONSOLE(?!.*source: chrome://)|net::ERR", done.stderr), done.stderr
    pixels = matplotlib.imread(picture)
    assert pixels.shape[:2] == (2000, width)
    background = pixels[0, 0, :3].mean()
    assert background > 0.9 if scheme == "light" else background < 0.2
    assert pixels[:, :, :3].std() > 0.01  # there is something on it
