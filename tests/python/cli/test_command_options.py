"""Options of the ``q7x2`` command that make no sense: refused, with the option or the file."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Iterator

import pytest
from ledger_files import Training
from q7x2.cli import main, make_parser

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
        (["--hosts", "0"], "argument --hosts: expected a whole number from 1 to 4096, got 0"),
        (["--hosts", "1000000000"], "--hosts: expected a whole number from 1 to 4096, got 10000"),
        (["--racks", "-1"], "argument --racks: expected a whole number from 1 to 4096, got -1"),
        (["--hosts", "3", "--racks", "2"], "3 hosts do not divide into 2 racks"),
        (["--ranks", "0"], "argument --ranks: expected a whole number from 1 to 4096, got 0"),
        (["--ranks", "3"], "3 ranks are too few for 4 hosts"),
        (["--ranks", "1e3"], "argument --ranks: expected a whole number from 1 to 4096, got 1e3"),
        (["--servers", "-1"], "--servers: expected a whole number from 0 to 4096, got -1"),
        (["--root", "-1"], "argument --root: expected a whole number from 0 to 4095, got -1"),
        (["--size", "9999999999G"], "argument --size: expected at most 1152921504606846976 bytes"),
        (["--rate", "9999999gbit"], "argument --rate: expected at most 1000000gbit"),
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


def options_of(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.Action]]:
    """The options of a command and of the commands below it, each with the command's name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield from options_of(command, f"{name} {word}")
        else:
            yield name, action


def test_everything_that_is_counted_has_a_limit() -> None:
    counted = 0
    for command, option in options_of(make_parser(), "q7x2"):
        assert option.type is not int, f"{command} {option.option_strings}: see count()"
        if getattr(option.type, "__qualname__", "").startswith("count."):
            for value in ("1000000000", "-1000000000", "many", "9" * 5000):
                with pytest.raises(argparse.ArgumentTypeError, match=r"from .* to"):
                    option.type(value)  # type: ignore[operator, misc]
            counted += 1
    assert counted > 10


def test_a_file_has_no_more_ranks_than_can_be_simulated(
    tmp_path: pathlib.Path, capsys: Said
) -> None:
    path = tmp_path / "fabric.json"
    hosts = [{"name": "h0", "egress": 1e9, "ingress": 1e9}]
    path.write_text(json.dumps({"q7x2_fabric": 1, "hosts": hosts, "ranks": [0] * 4097}))
    said = refused(capsys, *SIMULATE, "--fabric", str(path))
    assert f"{path}: expected at most 4096 ranks, got 4097" in said


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
