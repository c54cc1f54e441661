"""Options of the ``q7x2`` command that make no sense: refused, with the option or the file."""

from __future__ import annotations

import pathlib

import pytest
from ledger_files import Training
from q7x2.cli import main

Said = pytest.CaptureFixture[str]

SIMULATE = ["simulate", "--size", "1M"]


def refused(capsys: Said, *arguments: str) -> str:
    """What a command says on stderr, without a line break and without a result on stdout."""
    try:
        status = main(list(arguments))
    except SystemExit as end:  # argparse
        status = int(end.code or 0)
    said = capsys.readouterr()
    assert status in (1, 2)
    assert said.out == ""
    return said.err


# ---- rates and numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--rate", "--uplink", "--server-rate"])
@pytest.mark.parametrize("rate", ["0mbit", "0bit", "0.0gbit", "-1mbit", "5", "fast"])
@pytest.mark.parametrize("command", [("simulate",), ("plan", "explain")], ids=" ".join)
def test_rates(command: tuple[str, ...], option: str, rate: str, capsys: Said) -> None:
    said = refused(capsys, *command, "--size", "1M", f"{option}={rate}")
    assert f"argument {option}: expected a rate above 0, such as 100mbit or 1gbit" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--hosts", "0"], "expected at least 1 host and 1 rack, got 0 and 1"),
        (["--racks", "-1"], "expected at least 1 host and 1 rack, got 4 and -1"),
        (["--hosts", "3", "--racks", "2"], "3 hosts do not divide into 2 racks"),
        (["--ranks", "0"], "0 ranks are too few for 4 hosts"),
        (["--servers", "-1"], "expected at least 0 servers, got -1"),
    ],
)
def test_numbers_of_a_made_up_fabric(arguments: list[str], expected: str, capsys: Said) -> None:
    assert expected in refused(capsys, *SIMULATE, *arguments)


@pytest.mark.parametrize("command", ["report", "cost"])
@pytest.mark.parametrize("loss", ["nan", "inf", "low"])
def test_losses(command: str, loss: str, tmp_path: pathlib.Path, capsys: Said) -> None:
    said = refused(capsys, command, str(tmp_path), "--prices", "p", "--target-loss", loss)
    assert f"argument --target-loss: expected a number, got '{loss}'" in said


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("option", ["--window", "--interval"])
def test_seconds_of_top(option: str, seconds: str, tmp_path: pathlib.Path, capsys: Said) -> None:
    Training(steps=3).write(tmp_path)
    said = refused(capsys, "top", str(tmp_path), "--once", f"{option}={seconds}")
    assert "expected seconds above 0 for --window and --interval" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--job", "h:0"], "expected a port from 1 to 65535, got 0"),
        (["--job", "h:65536"], "expected a port from 1 to 65535, got 65536"),
        (["--master-addr", "h", "--master-port", "-1"], "expected a port from 1 to 65535"),
        (["--job", "h:1", "--timeout", "0"], "--timeout: expected seconds above 0, got 0"),
        (["--job", "h:1", "--timeout", "nan"], "--timeout: expected seconds above 0, got nan"),
    ],
)
def test_serve(arguments: list[str], expected: str, capsys: Said) -> None:
    assert expected in refused(capsys, "serve", *arguments)


# ---- files ---------------------------------------------------------------------------------------

FABRICS = {
    "empty": (b"", "expected JSON, as `q7x2 fabric probe --out FILE` writes it, got nothing"),
    "binary": (b"\xff\xfe\x00", "can't decode byte 0xff"),
    "text": (b"hosts", "not JSON"),
    "list": (b"[1]", "expected an object, got [1]"),
    "another object": (b"{}", "q7x2_fabric is missing"),
}
COMMANDS = {
    "simulate": SIMULATE,
    "simulate on some ranks": [*SIMULATE, "--ranks", "4"],
    "explain": ["plan", "explain", "--size", "1M"],
    "draw": ["plan", "draw", "--algorithm", "ring", "--out", "x.svg"],
    "export": ["plan", "export", "--algorithm", "ring"],
}


@pytest.mark.parametrize("kind", FABRICS)
@pytest.mark.parametrize("command", COMMANDS)
def test_files_without_a_fabric(
    command: str, kind: str, tmp_path: pathlib.Path, capsys: Said
) -> None:
    if command == "draw":
        pytest.importorskip("matplotlib")
    content, expected = FABRICS[kind]
    path = tmp_path / "fabric.json"
    path.write_bytes(content)
    said = refused(capsys, *COMMANDS[command], "--fabric", str(path))
    assert f"cannot read the fabric in {path}: " in said
    assert expected in said


@pytest.mark.parametrize("command", COMMANDS)
def test_files_that_are_none(command: str, tmp_path: pathlib.Path, capsys: Said) -> None:
    if command == "draw":
        pytest.importorskip("matplotlib")
    for path, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "x", "No such file or directory"),
        (pathlib.Path("/dev/null"), "got nothing"),
    ):
        said = refused(capsys, *COMMANDS[command], "--fabric", str(path))
        assert f"cannot read the fabric in {path}: " in said
        assert said.endswith(f"{reason}\n")


@pytest.mark.parametrize("command", ["why", "report", "trace", "cost", "top"])
def test_folders_of_ledgers_that_are_none(
    command: str, tmp_path: pathlib.Path, capsys: Said
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("")
    more = ["--prices", str(prices)] if command == "cost" else []
    for path in (prices, tmp_path / "x", pathlib.Path("/dev/null")):
        said = refused(capsys, command, str(path), *more)
        assert f"{path}: expected a directory with ledgers" in said
