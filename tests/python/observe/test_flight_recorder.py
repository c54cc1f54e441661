"""The flight recorder: what it keeps, when it is written, and that PyTorch's analyser reads it."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import signal
import subprocess
import time
from typing import Any

import harness
import interpreters
import pytest
import q7x2
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder.components.types import COLLECTIVES


@pytest.mark.ranks(2)
def test_records_have_what_was_called() -> None:
    peer = 1 - dist.get_rank()
    # The ring may be full, so places in it say nothing.
    before = max((e["record_id"] for e in q7x2.flight_recorder()), default=-1)
    begin = time.time_ns()
    dist.all_reduce(torch.ones(1000))
    dist.broadcast(torch.ones(10, dtype=torch.int64), 1)
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), peer, tag=7)
    else:
        dist.recv(torch.ones(3), peer, tag=7)
    entries = [
        e
        for e in q7x2.flight_recorder()
        if e["record_id"] > before and not e["q7x2"].get("internal")
    ]
    reduce, broadcast, message = entries
    assert reduce["profiling_name"] == "q7x2:all_reduce"
    assert reduce["input_sizes"] == [[1000]]
    assert reduce["input_dtypes"] == ["Float"]
    assert reduce["state"] == "completed"
    assert reduce["q7x2"]["state"] == "done"
    assert reduce["q7x2"]["reduce"] == "sum"
    assert reduce["q7x2"]["plan"]
    done, slices = reduce["q7x2"]["slices"]
    assert done == slices > 0
    created, completed = reduce["time_created_ns"], reduce["time_discovered_completed_ns"]
    assert begin <= created <= completed <= time.time_ns()
    assert broadcast["q7x2"]["root"] == 1
    assert broadcast["q7x2"]["bytes"] == 80
    assert broadcast["collective_seq_id"] > reduce["collective_seq_id"]
    arrow = "send 0->1" if dist.get_rank() == 0 else "recv 1<-0"
    assert message["profiling_name"] == f"q7x2:{arrow}"
    assert message["is_p2p"]
    assert message["q7x2"]["tag"] == 7


@pytest.mark.ranks(2)
def test_what_is_in_progress_says_what_it_waits_for() -> None:
    if dist.get_rank() == 0:
        tensor = torch.zeros(1)
        work = dist.irecv(tensor, 1, tag=5)
        entry = q7x2.flight_recorder()[-1]
        assert entry["state"] == "started"
        assert entry["q7x2"]["finished_ns"] is None
        (wait,) = entry["q7x2"]["waits"]
        assert (wait["rank"], wait["for"]) == (1, "receive")
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.send(torch.ones(1), 0, tag=5)


@pytest.mark.ranks(2, fresh=True, env={"Q7X2_FLIGHT_RECORDER": "10"})
def test_the_ring_has_as_many_records_as_asked_for() -> None:
    for _ in range(30):
        dist.all_reduce(torch.ones(1))
    entries = q7x2.flight_recorder()
    assert len(entries) == 10
    assert [e["record_id"] for e in entries] == list(
        range(entries[0]["record_id"], entries[0]["record_id"] + 10)
    )


@pytest.mark.ranks(2, fresh=True, env={"Q7X2_FLIGHT_RECORDER": "0"})
def test_it_can_be_turned_off() -> None:
    dist.all_reduce(torch.ones(1))
    assert q7x2.flight_recorder() == []


@pytest.mark.ranks(2)
def test_a_dump_is_written_on_request(shared: str) -> None:
    dist.all_reduce(torch.ones(1))
    path = pathlib.Path(shared) / f"rank{dist.get_rank()}.json"
    q7x2.dump(path)
    dump = json.loads(path.read_text())
    assert dump["q7x2"]["pid"] == os.getpid()
    assert dump["q7x2"]["reason"] == "dump() was called"
    assert [e["record_id"] for e in dump["entries"]] == [
        e["record_id"] for e in q7x2.flight_recorder()
    ]
    with pytest.raises(FileNotFoundError):
        q7x2.dump(path.parent / "nowhere" / "x.json")
    dist.barrier()
    left = sorted(p.name for p in path.parent.iterdir())
    assert left == ["rank0.json", "rank1.json"]


def test_without_a_group_there_is_nothing(tmp_path: pathlib.Path) -> None:
    code = """
import q7x2
assert q7x2.flight_recorder() == []
try:
    q7x2.dump("x.json")
except RuntimeError as error:
    assert "no q7x2 group" in str(error)
else:
    raise AssertionError("dump() did not raise")
"""
    subprocess.run([interpreters.python(), "-c", code], cwd=tmp_path, timeout=120, check=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("Q7X2_FLIGHT_RECORDER", "many", "Q7X2_FLIGHT_RECORDER=many"),
        ("Q7X2_FLIGHT_RECORDER", "-1", "Q7X2_FLIGHT_RECORDER=-1"),
        ("Q7X2_DUMP", "/proc/no", "Q7X2_DUMP=/proc/no"),
        ("Q7X2_LOG", "loud", "Q7X2_LOG=loud"),
    ],
)
def test_bad_settings_are_refused_at_once(
    variable: str, value: str, message: str, tmp_path: pathlib.Path
) -> None:
    source = """
        import torch.distributed as dist

        try:
            dist.init_process_group("q7x2")
        except ValueError as error:
            print(error)
    """
    (result,) = harness.run_script(source, 1, tmp_path, env={variable: value})
    assert message in result.stdout


WAITS_FOR_EVER = """
    import os
    import pathlib
    import sys
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("q7x2")
    dist.all_reduce(torch.ones(10))
    work = dist.irecv(torch.zeros(1), 1, tag=5) if dist.get_rank() == 0 else None
    pathlib.Path(f"{sys.argv[1]}/ready{dist.get_rank()}").touch()
    while not pathlib.Path(f"{sys.argv[1]}/go").exists():
        time.sleep(0.01)
    if work is None:
        dist.send(torch.ones(1), 0, tag=5)
    else:
        work.wait()
    dist.barrier()
    dist.destroy_process_group()
"""


def dumps_in(directory: pathlib.Path) -> list[dict[str, Any]]:
    paths = sorted(directory.glob("*.json")) if directory.exists() else []
    return [json.loads(path.read_text()) for path in paths]


def await_dumps(directory: pathlib.Path, count: int) -> list[dict[str, Any]]:
    harness.wait_until(lambda: len(dumps_in(directory)) >= count)
    return dumps_in(directory)


def test_a_signal_asks_for_a_dump_and_the_job_goes_on(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "dumps"
    env = {"Q7X2_DUMP": str(directory)}
    with harness.script(WAITS_FOR_EVER, 2, tmp_path, env, [str(tmp_path)]) as ranks:
        harness.wait_until(lambda: all((tmp_path / f"ready{r}").exists() for r in range(2)))
        for rank in ranks:
            rank.signal(signal.SIGUSR2)
        dumps = await_dumps(directory, 2)
        (tmp_path / "go").touch()
        results = [rank.result(60) for rank in ranks]
    assert [result.returncode for result in results] == [0, 0], [r.describe() for r in results]
    assert sorted(dump["q7x2"]["rank"] for dump in dumps) == [0, 1]
    assert all("SIGUSR2" in dump["q7x2"]["reason"] for dump in dumps)
    receive = next(d for d in dumps if d["q7x2"]["rank"] == 0)["entries"][-1]
    assert receive["q7x2"]["waits"][0]["rank"] == 1


# Rank 2 never makes the last call.
NEVER_COMES = """
    import datetime
    import os
    import pathlib
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("q7x2", timeout=datetime.timedelta(seconds=2))
    dumps = pathlib.Path(os.environ["Q7X2_DUMP"])
    for _ in range(3):
        dist.all_reduce(torch.ones(100))
    if dist.get_rank() == 2:
        dist.barrier()
        while len(list(dumps.glob("*.json"))) < 3:  # of all ranks: they have given up
            time.sleep(0.01)
    else:
        dist.barrier()
        try:
            dist.all_gather([torch.zeros(50) for _ in range(3)], torch.ones(50))
        except dist.DistBackendError as error:
            print(error)
"""


@pytest.mark.skipif("barrier" not in COLLECTIVES, reason="this torch's analyser reads NCCL's only")
def test_pytorchs_analyser_finds_the_missing_rank(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "dumps"
    harness.run_script(NEVER_COMES, 3, tmp_path, env={"Q7X2_DUMP": str(directory)})
    assert sorted(d["q7x2"]["rank"] for d in await_dumps(directory, 3)) == [0, 1, 2]
    traces = tmp_path / "torch"
    command = [interpreters.python(), "-m", "q7x2", "blame", str(directory), "--torch", str(traces)]
    subprocess.run(command, timeout=120, check=True)
    assert sorted(path.name for path in traces.iterdir()) == ["rank_0", "rank_1", "rank_2"]
    analyser = [interpreters.python(), "-m", "torch.distributed.flight_recorder.fr_trace"]
    done = subprocess.run(
        [*analyser, str(traces), "-o", str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Not all ranks joining collective, sequence number: 5" in said
    assert "collective: gloo:all_gather" in said
    assert "missing ranks: {2}" in said

    _, database = pickle.loads((tmp_path / "db").read_bytes())
    kinds = [c.collective_name for c in database.collectives]
    assert kinds == ["gloo:all_reduce"] * 3 + ["gloo:barrier", "gloo:all_gather"]
    assert [c.pass_check for c in database.collectives[:4]] == [True] * 4


def test_a_handler_in_the_program_and_a_forked_child_are_left_alone(
    tmp_path: pathlib.Path,
) -> None:
    source = """
        import os
        import signal
        import time

        import torch
        import torch.distributed as dist

        dist.init_process_group("q7x2")
        child = os.fork()
        if child == 0:
            time.sleep(60)  # by default the signal ends it
            os._exit(0)
        os.kill(child, signal.SIGUSR2)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGUSR2, status
        seen = []
        signal.signal(signal.SIGUSR2, lambda *_: seen.append(1))
        os.kill(os.getpid(), signal.SIGUSR2)
        until = time.monotonic() + 60
        while not seen:  # the handler runs between two instructions of this thread
            assert time.monotonic() < until
        assert seen == [1]
        dist.destroy_process_group()
    """
    directory = tmp_path / "dumps"
    harness.run_script(source, 1, tmp_path, env={"Q7X2_DUMP": str(directory)})
    assert dumps_in(directory) == []
