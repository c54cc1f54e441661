"""``Q7X2_LEDGER``: what the files of a job hold, while it runs, when it ends, and when it dies."""

from __future__ import annotations

import json
import os
import pathlib
import sqlite3
import subprocess
import textwrap
from collections import Counter
from typing import Any

import harness
import interpreters
import pytest
import torch.distributed as dist
from ledger_files import operation, packed, write_ledger
from pairs import nightly
from q7x2 import cli
from q7x2._core.extension import load
from q7x2.ledger import reader as ledger_reader
from q7x2.ledger.file import LedgerFile

from tests import lab as lab_package
from tests.lab import Lab, Topology

needs_lab = pytest.mark.skipif(
    lab_package.unavailable() is not None, reason=str(lab_package.unavailable())
)

BEGIN = """
import os, signal, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("q7x2")
rank = dist.get_rank()
"""


def environment(directory: pathlib.Path, **more: str) -> dict[str, str]:
    return {"Q7X2_LEDGER": str(directory / "ledger"), **more}


def ledgers_of(directory: pathlib.Path, ranks: int) -> list[ledger_reader.Ledger]:
    ledgers = ledger_reader.read(directory / "ledger")
    assert [ledger.rank for ledger in ledgers] == list(range(ranks))
    for ledger in ledgers:
        with sqlite3.connect(ledger.path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return ledgers


def calls_of(ledger: ledger_reader.Ledger) -> list[dict[str, Any]]:
    return [each for each in ledger.operations() if not each["internal"]]


def test_what_happens_during_a_pause_is_not_written(tmp_path: pathlib.Path) -> None:
    harness.run_script(
        BEGIN
        + """
from q7x2.ledger import writer
ledger = writer.of_process(os.environ["Q7X2_LEDGER"])
dist.all_reduce(torch.ones(1))
ledger.pause()
for _ in range(5):
    dist.broadcast(torch.ones(1), 0)
time.sleep(2)  # longer than the ledger's period
ledger.resume()
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
""",
        2,
        tmp_path,
        env=environment(tmp_path),
    )
    for ledger in ledgers_of(tmp_path, 2):
        assert [call["operation"] for call in calls_of(ledger)] == ["all_reduce"] * 2


def test_every_operation_of_a_program_is_there(tmp_path: pathlib.Path) -> None:
    harness.run_script(
        BEGIN
        + """
for _ in range(7):
    dist.all_reduce(torch.ones(1000))
dist.barrier()
group = dist.new_group([1, 0])
dist.broadcast(torch.ones(10), 0, group=group)
if rank == 0:
    dist.send(torch.ones(25), 1, tag=9)
else:
    dist.recv(torch.ones(25), 0, tag=9)
dist.destroy_process_group()
""",
        2,
        tmp_path,
        env=environment(tmp_path),
    )
    assert len(list((tmp_path / "ledger").iterdir())) == 2  # no logs beside the files
    ledgers = ledgers_of(tmp_path, 2)
    for ledger in ledgers:
        assert ledger.lost == 0
        calls = calls_of(ledger)
        message = "send" if ledger.rank == 0 else "receive"
        counts = Counter(call["operation"] for call in calls)
        assert counts == {"all_reduce": 7, "barrier": 1, "broadcast": 1, message: 1}
        reduce = next(call for call in calls if call["operation"] == "all_reduce")
        assert reduce["input_bytes"] == 4000
        assert reduce["dtype"] == "float32"
        assert reduce["plan"]
        assert reduce["predicted_ns"] > 0
        for call in calls:
            assert call["error"] is None
            assert call["queued_ns"] <= call["started_ns"] <= call["finished_ns"]
            assert call["waited_ns"] <= call["finished_ns"] - call["started_ns"]
        (last,) = [call for call in calls if call["operation"] == message]
        assert last["tag"] == 9
        assert last["peer"] == 1 - ledger.rank
        assert last["sent_memory"] + last["received_memory"] == 100
        groups = ledger.groups()
        assert len(groups) == 2
        assert [m["rank"] for m in groups[0, last["pg"]]["members"]] == [0, 1]
        assert ledger.facts["world_size"] == "2"
    for key in ("sent_memory", "sent_network"):
        other = key.replace("sent", "received")
        assert sum(call[key] for each in ledgers for call in calls_of(each)) == sum(
            call[other] for each in ledgers for call in calls_of(each)
        )


def test_a_killed_ranks_file_is_readable(tmp_path: pathlib.Path) -> None:
    source = (
        BEGIN
        + """
dist.all_reduce(torch.ones(1000))
print("ready", flush=True)
while True:
    dist.all_reduce(torch.ones(1000))
    time.sleep(0.01)
"""
    )
    with harness.script(source, 2, tmp_path, environment(tmp_path)) as (first, second):

        def are_written() -> bool:
            rows = 0
            for path in (tmp_path / "ledger").glob(f"q7x2-rank1-*-{second.pid}.sqlite"):
                with sqlite3.connect(path) as connection:
                    count = "SELECT COALESCE(SUM(count), 0) FROM batch"
                    rows = connection.execute(count).fetchone()[0]
            return rows >= 10

        harness.wait_until(are_written)
        second.signal(9)
        assert first.wait(60) not in (0, None)
    survivor, killed = ledgers_of(tmp_path, 2)
    assert len(list(killed.operations())) >= 10
    # What it sends by itself may have failed, too.
    calls = [call for call in survivor.operations() if call["operation"] == "all_reduce"]
    failed = [call for call in calls if call["error"]]
    assert {call["error"] for call in failed} == {"peer failed"}
    assert failed[0]["waited_for"] == 1
    (group,) = survivor.groups().values()
    assert "rank 1" in group["failure"]


def test_what_the_recorder_has_no_room_for_is_counted(tmp_path: pathlib.Path) -> None:
    harness.run_script(
        BEGIN
        + """
for _ in range(300):
    dist.all_reduce(torch.ones(10))
dist.destroy_process_group()
""",
        2,
        tmp_path,
        env=environment(tmp_path, Q7X2_FLIGHT_RECORDER="8"),
    )
    for ledger in ledgers_of(tmp_path, 2):
        rows = len(list(ledger.operations()))
        assert ledger.recorded >= 300
        assert 0 < ledger.lost == ledger.recorded - rows
        with sqlite3.connect(ledger.path) as connection:
            counters = connection.execute(
                "SELECT counters FROM counter WHERE operation = 'all_reduce'"
            ).fetchone()
        assert json.loads(counters[0])["count"] == 300  # of all, also of those that are lost


def test_an_earlier_job_in_the_directory_does_not_count(tmp_path: pathlib.Path) -> None:
    program = """
import os, pathlib, platform
directory = pathlib.Path(os.environ["Q7X2_LEDGER"])
directory.mkdir(exist_ok=True)
# Of an earlier process with the number of this one.
(directory / f"q7x2-rank{os.environ['RANK']}-{platform.node()}-{os.getpid()}.sqlite").touch()
"""
    for ranks in (3, 2):
        harness.run_script(
            (program if ranks == 2 else "")
            + BEGIN
            + """
dist.barrier()
dist.destroy_process_group()
""",
            ranks,
            tmp_path,
            env=environment(tmp_path),
        )
        for path in (tmp_path / "ledger").iterdir():
            if path.stat().st_size == 0:
                path.unlink()
        assert len(ledger_reader.read(tmp_path / "ledger")) == ranks
    assert len(list((tmp_path / "ledger").iterdir())) == 5


def test_a_program_that_makes_groups_again_has_one_file(tmp_path: pathlib.Path) -> None:
    harness.run_script(
        BEGIN
        + """
dist.all_reduce(torch.ones(10))
dist.destroy_process_group()
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
dist.init_process_group("q7x2")
dist.barrier()
# It ends without destroy_process_group.
""",
        2,
        tmp_path,
        env=environment(tmp_path),
    )
    for ledger in ledgers_of(tmp_path, 2):
        calls = calls_of(ledger)
        assert [(call["runtime"], call["operation"]) for call in calls] == [
            (0, "all_reduce"),
            (1, "barrier"),
        ]


def test_a_forked_child_writes_nothing(tmp_path: pathlib.Path) -> None:
    harness.run_script(
        BEGIN
        + """
dist.all_reduce(torch.ones(10))
pid = os.fork()
if pid == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
dist.barrier()
dist.destroy_process_group()
pid = os.fork()
if pid == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
""",
        2,
        tmp_path,
        env=environment(tmp_path),
    )
    assert len(list((tmp_path / "ledger").glob("*.sqlite"))) == 2
    for ledger in ledgers_of(tmp_path, 2):
        assert [call["operation"] for call in calls_of(ledger)] == ["all_reduce", "barrier"]


def batch_of(first: int, count: int) -> dict[str, Any]:
    return {
        "process": 5,
        "steady_ns": 0,
        "wall_ns": 0,
        "recorded": first + count,
        "lost": 0,
        "operations": packed(
            load().ledger_columns(), [{"id": first + i, "pg": 1} for i in range(count)]
        ),
        "groups": {},
        "counters": {},
    }


def test_a_file_keeps_to_its_size(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "q7x2-rank0.sqlite"
    limit = 1 << 20
    file = LedgerFile(path, load().ledger_columns(), {"rank": 0, "begun_wall_ns": 0}, limit)
    written = 60_000
    for first in range(0, written, 2000):
        file.write([batch_of(first, 2000)])
    file.close()
    assert path.stat().st_size < 1.5 * limit
    (ledger,) = ledger_reader.read(tmp_path)
    rows = [row for (row,) in ledger.rows(["id"], "TRUE ORDER BY id")]
    assert rows == list(range(written - len(rows), written))  # the newest
    assert ledger.lost == written - len(rows) > 0


def test_questions_in_sql_are_about_all_ranks(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        calls = [operation(id=i, sequence=i, error=None, tag=None) for i in range(1, 4 + rank)]
        write_ledger(tmp_path, rank, calls, behind=5 * rank)
    ask = "SELECT rank, plan, COUNT(*) AS calls, MIN(queued_ns), MAX(tag) FROM operation GROUP BY 1"
    assert cli.main(["sql", str(tmp_path), ask]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "rank\tplan\tcalls\tMIN(queued_ns)\tMAX(tag)"
    # Both began at the same time of rank 0's clock.
    assert rows == [f"0\tring\t3\t{10**9}\t", f"1\tring\t4\t{10**9}\t"]
    assert cli.main(["sql", str(tmp_path), "SELECT absent FROM operation"]) == 1
    assert "no such column: absent" in capsys.readouterr().err


def test_a_reader_of_answers_may_go(tmp_path: pathlib.Path) -> None:
    write_ledger(tmp_path, 0, [operation(id=1)])
    command = [interpreters.python(), "-m", "q7x2", "sql", str(tmp_path)]
    command.append("SELECT * FROM operation")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"Q7X2_LEDGER": "/proc/no"}, "expected a directory"),
        ({"Q7X2_LEDGER_SIZE": "much"}, "Q7X2_LEDGER_SIZE=much"),
        ({"Q7X2_LEDGER_SIZE": "4K"}, "at least 1M"),
        ({"Q7X2_FLIGHT_RECORDER": "0"}, "needs the flight recorder"),
    ],
)
def test_a_bad_setting_is_an_error(
    variables: dict[str, str],
    expected: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (environment(tmp_path) | variables).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=expected):
        dist.init_process_group("q7x2", store=dist.HashStore(), rank=0, world_size=1)


def test_what_is_no_ledger_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ledger_reader.LedgerError, match="has no ledger"):
        ledger_reader.read(tmp_path)
    path = tmp_path / "q7x2-rank0-a-1.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(ledger_reader.LedgerError, match="could not be read"):
        ledger_reader.read(tmp_path)
    path.unlink()
    file = LedgerFile(path, load().ledger_columns(), {"rank": 0, "begun_wall_ns": 0}, 1 << 20)
    file.set_facts({"schema_version": 99})
    file.close()
    with pytest.raises(ledger_reader.LedgerError, match="version 99"):
        ledger_reader.read(tmp_path)


@needs_lab
@pytest.mark.parametrize("ahead_s", [1000, nightly(0, "a clock that is ahead tells more")])
def test_clocks_of_hosts_are_compared(ahead_s: int, tmp_path: pathlib.Path) -> None:
    program = textwrap.dedent(
        BEGIN
        + """
dist.all_reduce(torch.ones(10))
dist.destroy_process_group()
"""
    )
    path = tmp_path / "program.py"
    path.write_text(program)
    # Host 1 has a steady clock of its own.
    clock = f"unshare --time --monotonic {ahead_s} --fork" if ahead_s else ""
    shell = f'if [ $RANK = 2 -o $RANK = 3 ]; then exec {clock} "$@"; else exec "$@"; fi'
    with Lab(Topology(hosts=2)) as lab:
        lab.run(
            ["sh", "-c", shell, "sh", interpreters.python(), str(path)],
            ranks_per_host=2,
            env=environment(tmp_path),
            timeout_s=120,
        )
    for ledger in ledgers_of(tmp_path, 4):
        assert ledger.uncertainty_ns is not None
        true_offset = -ahead_s * 1_000_000_000 if ledger.rank >= 2 else 0
        assert abs(ledger.offset_ns - true_offset) <= ledger.uncertainty_ns
        assert ledger.uncertainty_ns < 1_000_000_000
