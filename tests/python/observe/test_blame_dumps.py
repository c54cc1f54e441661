"""What ``q7x2 blame`` says about dumps that a test wrote: no job runs."""

from __future__ import annotations

import copy
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import pytest
from blame_command import blame
from q7x2 import cli


def call_of(
    rank: int,
    state: str,
    at: float,
    waits: Sequence[tuple[int, str]] = (),
    progressed: float | None = None,
) -> Any:
    return {
        "record_id": 0,
        "process_group": ["world@1.0", "undefined"],
        "collective_seq_id": 4,
        "p2p_seq_id": 0,
        "profiling_name": "q7x2:all_reduce",
        "time_created_ns": int(at * 1e9),
        "timeout_ms": 30000,
        "is_p2p": False,
        "q7x2": {
            "state": state,
            "bytes": 4096,
            "dtype": "float32",
            "reduce": "sum",
            "fingerprint": "1",
            "progressed_ns": None if progressed is None else int(progressed * 1e9),
            "finished_ns": int((at + 1) * 1e9) if state == "done" else None,
            "waits": [{"rank": r, "for": what, "via": "UCX"} for r, what in waits],
        },
    }


def dump_of(rank: int, entries: list[Any], ranks: int = 3) -> dict[str, Any]:
    members = [{"rank": r, "process": str(r), "pid": 40 + r, "host": f"h{r}"} for r in range(ranks)]
    group = {"key": "world@1.0", "name": "world", "rank": rank, "members": members}
    return {
        "version": "2.10",
        "pg_config": {},
        "q7x2": {
            "rank": rank,
            "process": str(rank),
            "time_ns": int(130 * 1e9),
            "recorded": len(entries),
            "capacity": 2000,
            "groups": [group],
        },
        "entries": entries,
    }


def line_of(directory: pathlib.Path, dumps: list[dict[str, Any]]) -> str:
    for i, dump in enumerate(dumps):
        (directory / f"{i}.json").write_text(json.dumps(dump))
    done = blame(directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_link_is_where_nobody_else_is_waited_for(tmp_path: pathlib.Path) -> None:
    """Rank 0 waits for 1, and 1 for 2; rank 2 waits for 1 to take what it sends."""
    dumps = [
        dump_of(0, [call_of(0, "started", 100, [(1, "receive")])]),
        dump_of(1, [call_of(1, "started", 100, [(2, "receive")])]),
        dump_of(2, [call_of(2, "started", 100, [(1, "send")])]),
    ]
    line = line_of(tmp_path, dumps)
    assert "the link between rank 2 (pid 42 on h2) and rank 1 (pid 41 on h1) is stuck" in line
    assert "rank 1 waits to receive from rank 2 over UCX" in line


def test_a_rank_that_was_stopped_and_went_on_is_no_witness(tmp_path: pathlib.Path) -> None:
    """Ranks 1 and 2 wait for rank 0, which got what rank 1 had sent when it went on at last."""
    dumps = [
        dump_of(0, [call_of(0, "started", 100, [(1, "receive")], progressed=129.9)]),
        dump_of(1, [call_of(1, "started", 100, [(0, "receive"), (2, "send")], progressed=100.1)]),
        dump_of(2, [call_of(2, "started", 100, [(0, "receive")])]),
    ]
    line = line_of(tmp_path, dumps)
    assert "the link between rank 0 (pid 40 on h0) and rank " in line
    assert "waits to receive from rank 0 over UCX" in line


@pytest.mark.parametrize(
    ("calls", "text", "at"),
    [
        ([], r"group 'world': rank 1 .* never came to all_reduce", 100.0),
        ([call_of(1, "done", 100.0)], r"Nothing failed", None),
    ],
    ids=["a rank never came", "nothing is wrong"],
)
def test_lines_as_json(
    calls: list[Any],
    text: str,
    at: float | None,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = call_of(0, "done" if calls else "started", 100.0, [] if calls else [(1, "receive")])
    for rank, entries in enumerate(([first], calls)):
        (tmp_path / f"{rank}.json").write_text(json.dumps(dump_of(rank, entries, ranks=2)))
    assert cli.main(["blame", str(tmp_path), "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert re.match(text, line["text"]), line
    assert line["at"] == at


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("it has not made this call, its process is stopped", "its process is stopped"),
        ("its host answers", "its host answers"),
        ("it has not made this call", ""),
    ],
)
def test_what_the_exceptions_say_of_a_rank_is_said(
    said: str, shown: str, tmp_path: pathlib.Path
) -> None:
    """In the group, the rank of the job is number 1."""
    dumps = [
        dump_of(0, [call_of(0, "started", 100, [(1, "receive")])]),
        dump_of(1, []),
        dump_of(2, [call_of(2, "started", 100, [(1, "receive")])]),
    ]
    text = f"all_reduce: Timed out after 9 ms; rank 1 (pid 41 on h1) is late: {said}"
    for dump in dumps:
        (group,) = dump["q7x2"]["groups"]
        group["members"][1]["rank"] = 5
        if group["rank"] != 1:
            group["failure"] = {
                "code": "timeout",
                "rank": 1,
                "text": text,
                "time_ns": int(129 * 1e9),
            }
    line = line_of(tmp_path, dumps)
    assert "rank 5 (pid 41 on h1) never came to all_reduce" in line
    late = "; ranks 0, 2 found rank 5 (pid 41 on h1) late: "
    assert line.rstrip().endswith(late + shown) if shown else late not in line


def test_a_rank_without_a_dump_is_named(tmp_path: pathlib.Path) -> None:
    dumps = [
        dump_of(0, [call_of(0, "started", 100, [(1, "receive")])]),
        dump_of(2, [call_of(2, "started", 100, [(0, "receive")])]),
    ]
    line = line_of(tmp_path, dumps)
    assert "rank 1 left no dump and may never have come to all_reduce of 4096 bytes" in line
    assert "ranks 0, 2 waited 30 s for it" in line


def test_the_newest_dump_of_a_process_counts(tmp_path: pathlib.Path) -> None:
    old = dump_of(0, [call_of(0, "started", 100, [(1, "receive")])], ranks=2)
    new = copy.deepcopy(old)
    new["q7x2"]["time_ns"] += 10**9
    new["entries"] = [call_of(0, "done", 100)]
    other = dump_of(1, [call_of(1, "done", 105)], ranks=2)
    line = line_of(tmp_path, [new, old, other])
    assert "Nothing failed and nothing is in progress." in line


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"q7x2": {}, "entries": []}', "null"])
def test_a_file_that_is_no_dump_is_refused(text: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.json").write_text(text)
    done = blame(tmp_path)
    assert done.returncode == 1
    assert "x.json is no dump" in done.stderr


def test_damaged_dumps_are_refused(tmp_path: pathlib.Path) -> None:
    whole = dump_of(0, [call_of(0, "done", 100)])
    damages: list[Any] = []
    for path in (("q7x2", "rank"), ("q7x2", "groups"), ("q7x2", "process"), ("entries",)):
        damaged = copy.deepcopy(whole)
        target = damaged
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = [3.5]
        damages.append(damaged)
    damages.append(copy.deepcopy(whole))
    damages[-1]["q7x2"]["groups"][0]["rank"] = 9
    damages.append(copy.deepcopy(whole))
    damages[-1]["entries"][0]["q7x2"]["waits"] = [{"rank": "x"}]
    for damaged in damages:
        (tmp_path / "x.json").write_text(json.dumps(damaged))
        done = blame(tmp_path)
        assert done.returncode == 1, done.stdout
        assert "x.json is no dump" in done.stderr


def test_an_empty_directory_is_an_error(tmp_path: pathlib.Path) -> None:
    done = blame(tmp_path)
    assert done.returncode == 1
    assert "there is no dump here" in done.stderr
    assert blame(tmp_path / "nowhere").returncode == 1
