"""A brand-new Debian in a folder, to run a page's commands in as a new user would.

It has what a server has after its installation (Python, git, certificates) and this machine's
settings of apt and pip, so that it finds packages where this machine does. The first one is
downloaded and kept under ``build``; each test gets a copy.
"""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

import harness

_BASE = harness.ROOT / "build" / "bare-debian"
_PACKAGES = "ca-certificates,git,python3,python3-venv"
_SETTINGS = (
    "/etc/apt",
    "/etc/ssl",
    "/etc/ca-certificates",
    "/etc/xdg/pip",
    "/usr/share/keyrings",
    "/usr/local/share/ca-certificates",
)
# In namespaces of its own, so that nothing stays mounted, and no process goes on. The folder is the
# root of these, and not only of a process: virtual hosts make namespaces within them.
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
_ENTER = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
for folder in $2; do mkdir -p "$1$folder"; mount --bind "$folder" "$1$folder"; done
cd "$1"
pivot_root . .
umount -l .
exec chroot . bash -c 'cd "$HOME/q7x2" && set -e && eval "$0"' "$3"
"""


def why_not() -> str | None:
    """What is missing for one; None: nothing."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("debootstrap") is None:
        return "no debootstrap: apt-get install debootstrap"
    if platform.freedesktop_os_release()["ID"] != "debian":
        return "needs a Debian, whose settings of apt it copies"
    return None


class BareDebian:
    """A context manager; the checkout is in ``~/q7x2``, as ``git clone`` has it."""

    def __enter__(self) -> BareDebian:
        _make_base()
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="q7x2-debian-"))
        try:
            _call("cp", "-a", f"{_BASE}/.", str(self._folder))
            _call("git", "clone", "--quiet", str(harness.ROOT), str(self.checkout))
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)

    @property
    def checkout(self) -> pathlib.Path:
        """``~/q7x2``, as this machine sees it."""
        return self._folder / "root" / "q7x2"

    def run(self, script: str, timeout_s: float) -> str:
        """What the commands print; fails if one of them does."""
        inherited = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or "proxy" in k}
        environment = {
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "noninteractive",
            **inherited,
        }
        folders = " ".join(
            word
            for key in ("find-links", "extra-index-url", "index-url")
            for word in _pip_folders(key)
        )
        done = subprocess.run(
            [*_NAMESPACES, "bash", "-c", _ENTER, "enter", self._folder, folders, script],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout


def _make_base() -> None:
    if (_BASE / "etc" / "q7x2-is-whole").exists():
        return
    shutil.rmtree(_BASE, ignore_errors=True)
    _BASE.mkdir(parents=True)
    _call("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _release(), str(_BASE))
    pip = pathlib.Path.home() / ".config" / "pip"
    places = {folder: folder for folder in _SETTINGS} | {str(pip): "/root/.config/pip"}
    for folder, place in places.items():
        if pathlib.Path(folder).is_dir():
            (_BASE / place[1:]).mkdir(parents=True, exist_ok=True)
            # Links there lead out of the new Debian as long as it is not the root.
            _call("cp", "-a", "--remove-destination", f"{folder}/.", f"{_BASE}{place}")
    shutil.copy("/etc/resolv.conf", _BASE / "etc" / "resolv.conf")
    # As Debian's installer writes it.
    names = f"127.0.0.1 localhost\n127.0.1.1 {platform.node()}\n"
    (_BASE / "etc" / "hosts").write_text(names)
    # A user answers the question; here is nobody to do so.
    (_BASE / "etc" / "apt" / "apt.conf.d" / "99yes").write_text('APT::Get::Assume-Yes "true";\n')
    _call("chroot", str(_BASE), "apt-get", "update")
    (_BASE / "etc" / "q7x2-is-whole").touch()


def _release() -> str:
    """This machine's, because its settings of apt are copied: they name the release."""
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def _pip_folders(key: str) -> list[str]:
    """The folders of this machine among pip's places for packages.

    Packages may lie beside an index, ``simple``, which links to them.
    """
    done = subprocess.run(
        [shutil.which("python3") or "python3", "-m", "pip", "config", "get", f"global.{key}"],
        capture_output=True,
        text=True,
    )
    words = [word.removeprefix("file://").removesuffix("/simple") for word in done.stdout.split()]
    return [word for word in words if word.startswith("/") and pathlib.Path(word).is_dir()]


def _call(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-3000:]}"
