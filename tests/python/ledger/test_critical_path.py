"""The critical path of steps, and the causes that ``q7x2 why`` names."""

from __future__ import annotations

import json
import pathlib
import re
import socket

import harness
import pytest
from ledger_files import MILLISECOND, Training, operation, write_ledger
from q7x2 import cli
from q7x2.ledger import causes as ledger_causes
from q7x2.ledger import connections as ledger_connections
from q7x2.ledger import reader as ledger_reader
from q7x2.ledger.critical_path import PARTS


def analyse(directory: pathlib.Path) -> ledger_causes.Analysis:
    analysis = ledger_causes.analyse(ledger_reader.read(directory))
    for step in analysis.steps:
        assert sum(step.parts.values()) == pytest.approx(step.seconds, rel=1e-6)
        assert min(step.parts.values()) >= 0
    return analysis


def parts_of(analysis: ledger_causes.Analysis) -> dict[str, float]:
    """Milliseconds per step, without those that are 0."""
    parts = {part: 1e3 * analysis.part(part) for part in PARTS}
    return {part: pytest.approx(taken, abs=1e-3) for part, taken in parts.items() if taken > 1e-6}


def at(begin: float, end: float, **values: object) -> dict[str, object]:
    """An operation between two times in milliseconds, which waits for nobody in particular."""
    times = {"queued_ns": begin, "started_ns": values.pop("started", begin), "finished_ns": end}
    rounded = {key: round(value * MILLISECOND) for key, value in times.items()}
    waited = {"waited_ns": rounded["finished_ns"] - rounded["started_ns"], "waited_for": None}
    return operation(**rounded, **{"reduce_ns": 0, "copy_ns": 0, **waited, **values})


@pytest.mark.parametrize("behind", [0, 7_000_000_000])
def test_a_step_of_two_ranks_is_divided(behind: int, tmp_path: pathlib.Path) -> None:
    ms = MILLISECOND
    # Rank 0 computes 10 ms, rank 1 computes 14 ms. From 14 ms to 20 ms both reduce.
    first = at(10, 20, waited_ns=8 * ms, waited_for=1, waited_percent=100, copy_ns=ms, reduce_ns=ms)
    second = at(14, 20, waited_ns=ms, encode_ns=2 * ms, decode_ns=ms, copy_ns=ms, codec="int8")
    for rank, each in enumerate((first, second)):
        steps = [(0, None), (25 * ms, 0.5)]
        write_ledger(tmp_path, rank, [each], behind * rank, steps=steps)
    analysis = analyse(tmp_path)
    assert analysis.boundaries.losses == [0.5]
    # Of the 6 ms, rank 1 was busy for 5 ms, of which 1 ms is in no phase.
    assert parts_of(analysis) == {
        "compute": 15,
        "straggler": 4,
        "serialisation": 3,
        "memory": 1,
        "queueing": 1,
        "wire": 1,
    }
    blamed = {who: 1e3 * seconds for who, seconds in analysis.steps[0].blamed.items()}
    assert blamed["straggler", 1] == pytest.approx(4)
    assert blamed["serialisation", "int8"] == pytest.approx(3)
    assert blamed["wire", (1, 0)] == pytest.approx(1)


def test_what_runs_beside_the_program_costs_nothing(tmp_path: pathlib.Path) -> None:
    rows = []
    for step in range(4):
        begin = 40 * step
        sequence = 10 * step
        # Two buckets during backward, of which the first ends before the second begins in half of
        # the steps; then a metric, for which the program waits.
        short = begin + (19 if step % 2 else 22)
        rows += [
            at(begin + 10, short, sequence=sequence, id=sequence + 1),
            at(begin + 20, begin + 30, sequence=sequence + 1, id=sequence + 2),
            at(begin + 32, begin + 34, sequence=sequence + 2, id=sequence + 3)
            | {"operation": "broadcast"},
        ]
    steps = [(40 * step * MILLISECOND, None) for step in range(5)]
    write_ledger(tmp_path, 0, rows, ranks=1, steps=steps)
    analysis = analyse(tmp_path)
    assert parts_of(analysis) == {"compute": 28, "wire": 12}
    # The second bucket is submitted 10 ms after the first, which is in flight in half of the steps.
    assert analysis.overlap == pytest.approx((10 + 0 + 10 + 0) / (22 + 21 + 22 + 21), abs=1e-9)


def test_operations_that_queue_lead_to_those_before_them(tmp_path: pathlib.Path) -> None:
    rows = [
        at(10, 20, sequence=0),
        at(11, 27, started=21, sequence=1, id=2),
        at(12, 30, started=28, sequence=2, id=3),
    ]
    write_ledger(tmp_path, 0, rows, ranks=1, steps=[(0, None), (30 * MILLISECOND, None)])
    assert parts_of(analyse(tmp_path)) == {"compute": 10, "wire": 18, "queueing": 2}


def test_what_waits_for_a_thread_waits_for_what_the_thread_does(tmp_path: pathlib.Path) -> None:
    ms = MILLISECOND
    # Three operations are launched at once, and one thread encodes them one after another.
    coded = {"codec": "topk:0.1", "encode_ns": 4 * ms, "waited_ns": 0}
    rows = [at(10, 20 + step, sequence=step, id=step + 1, **coded) for step in range(3)]
    write_ledger(tmp_path, 0, rows, ranks=1, steps=[(0, None), (22 * ms, None)])
    analysis = analyse(tmp_path)
    # Of the 12 ms of the last one, its own codec takes 4 ms, and that of the others 8 ms.
    assert parts_of(analysis) == {"compute": 10, "serialisation": 12}
    assert analysis.causes[0].who == "topk:0.1"


CAUSES = [
    (Training(late={2: ("processor", 15)}), "processor", 2),
    (Training(late={1: ("compute", 15)}), "straggler", 1),
    (Training(late={3: ("idle", 15)}), "launch", 3),
    (Training(late=dict.fromkeys(range(4), ("idle", 15))), "launch", None),
    (Training(encode=15), "codec", "slow"),
    (Training(slow_host=2, slow=15), "link", "h2"),
    (Training(slow_host=1, slow=15, has_connections=True), "link", "h1"),
]


@pytest.mark.parametrize(
    ("training", "kind", "who"), CAUSES, ids=[f"{kind}-{who}" for _, kind, who in CAUSES]
)
def test_the_cause_is_named_first(
    training: Training, kind: str, who: int | str | None, tmp_path: pathlib.Path
) -> None:
    seconds = training.write(tmp_path)
    analysis = analyse(tmp_path)
    assert len(analysis.steps) == training.steps
    assert analysis.seconds() == pytest.approx(seconds / training.steps)
    first = analysis.causes[0]
    assert first.kind == kind
    if who is not None:
        assert first.who == who
        assert first.seconds == pytest.approx(0.0155, rel=0.4)


def test_connections_are_busy_while_they_send() -> None:
    names = ("127.0.0.2", "127.0.0.3")
    with socket.create_server((names[0], 0)) as server:
        sender = socket.create_connection(server.getsockname(), source_address=(names[1], 0))
        receiver, _ = server.accept()
        with sender, receiver:
            sender.sendall(b"x" * 10_000)
            assert len(receiver.recv(10_000, socket.MSG_WAITALL)) == 10_000
            busy = ledger_connections.busy_us()
            assert busy[f"{names[1]} {names[0]}"] >= 0
            assert busy[f"{names[0]} {names[1]}"] == 0
    assert f"{names[1]} {names[0]}" not in ledger_connections.busy_us()


@pytest.mark.parametrize("buckets", [1, 5])
def test_steps_are_found_without_marks(buckets: int, tmp_path: pathlib.Path) -> None:
    Training(buckets=buckets, late=dict.fromkeys(range(4), ("compute", 20))).write(tmp_path)
    marked = analyse(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    training = Training(
        buckets=buckets, late=dict.fromkeys(range(4), ("compute", 20)), is_logged=False
    )
    training.write(tmp_path)
    estimated = analyse(tmp_path)
    assert estimated.boundaries.origin == "estimated"
    assert [step.end_ns for step in estimated.steps][-40:] == [
        step.end_ns for step in marked.steps
    ][-40:]


def test_a_job_without_steps_is_one_path(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ledger(tmp_path, 0, [at(0, 4), at(9, 10, id=2, sequence=4)], ranks=1)
    assert parts_of(analyse(tmp_path)) == {"compute": 5, "wire": 5}
    assert cli.main(["why", str(tmp_path)]) == 0
    assert "10 ms on 1 ranks; no steps were found" in capsys.readouterr().out


def test_ledgers_without_operations_are_said_to_be_empty(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ledger(tmp_path, 0, [])
    assert cli.main(["why", str(tmp_path)]) == 0
    assert "no operations" in capsys.readouterr().out


def test_a_real_training_adds_up(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = harness.run_script(
        """
import time
import torch
import torch.distributed as dist
import q7x2
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("q7x2")
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Linear(200, 200), bucket_cap_mb=0.1)
for step in range(41):
    if dist.get_rank() == 1:
        time.sleep(0.05)  # an injected late launch
    model(torch.ones(4, 200)).mean().backward()
    q7x2.log_step(1.0 / (1 + step))
    if step == 0:
        begin = time.monotonic()
print("seconds", (time.monotonic() - begin) / 40)
dist.destroy_process_group()
""",
        2,
        tmp_path,
        env={"Q7X2_LEDGER": str(tmp_path / "ledger")},
    )
    measured = max(float(re.findall(r"seconds (.*)", each.stdout)[0]) for each in done)
    analysis = analyse(tmp_path / "ledger")
    assert len(analysis.steps) == 40
    total = sum(analysis.part(part) for part in PARTS)
    assert total == pytest.approx(measured, rel=0.05)
    late = analysis.part("launch") + analysis.part("straggler")
    assert late > 0.02
    assert cli.main(["why", str(tmp_path / "ledger"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["boundaries"] == "logged"
    assert said["causes"][0]["kind"] in ("launch", "processor")  # as busy as the machine is


@pytest.mark.parametrize(
    ("loss", "error"), [("1", TypeError), (True, TypeError), (float("inf"), ValueError)]
)
def test_what_is_no_loss_is_refused(loss: object, error: type[Exception]) -> None:
    import q7x2

    with pytest.raises(error):
        q7x2.log_step(loss)  # type: ignore[arg-type]
