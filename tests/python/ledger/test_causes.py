"""The sentences of ``q7x2 why``: whom they name, and what else the ledgers say of a cause."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
from ledger_files import Training
from q7x2._core import periods
from q7x2.ledger import causes as ledger_causes
from q7x2.ledger import rank_causes as ledger_rank_causes
from q7x2.ledger import reader as ledger_reader
from q7x2.ledger import slow_link as ledger_slow_link


def causes_of(training: Training, directory: pathlib.Path) -> dict[str, ledger_causes.Cause]:
    """The causes by their kind."""
    training.write(directory)
    found = ledger_causes.analyse(ledger_reader.read(directory)).causes
    return {each.kind: each for each in found}


# ---- whom they name ------------------------------------------------------------------------------


@pytest.mark.parametrize("last", range(4))
def test_ranks_that_are_equally_idle_are_not_blamed(last: int, tmp_path: pathlib.Path) -> None:
    """One of them is last in each step, by a little."""
    late = {rank: ("idle", 18.0 if rank == last else 15.0) for rank in range(4)}
    launch = causes_of(Training(late=late), tmp_path)["launch"]
    assert launch.who is None
    assert launch.text.startswith("ranks launch late")
    assert launch.seconds == pytest.approx(0.0165, rel=0.2)


def test_a_rank_that_is_idle_for_longer_is_named(tmp_path: pathlib.Path) -> None:
    late = {rank: ("idle", 40.0 if rank == 2 else 10.0) for rank in range(4)}
    assert causes_of(Training(late=late), tmp_path)["launch"].who == 2


@pytest.mark.parametrize(
    ("seconds", "named"),
    [
        ({}, None),
        ({0: 0.0, 1: 0.0}, None),
        ({3: 1.0}, 3),
        ({0: 1.0, 1: 0.9}, None),
        ({0: 1.0, 1: 0.4}, 0),
        ({0: 3.0, 1: 1.0, 2: 1.0, 3: 1.0}, None),
        ({0: 4.0, 1: 1.0, 2: 1.0, 3: 1.0}, 0),
    ],
)
def test_whoever_stands_out(seconds: dict[int, float], named: int | None) -> None:
    assert ledger_rank_causes.outstanding(seconds) == named


def test_hosts_that_are_equally_slow_are_not_named(tmp_path: pathlib.Path) -> None:
    link = causes_of(Training(compute=5, wire=30), tmp_path)["link"]
    assert link.who is None
    assert link.text == "the network between the hosts takes long"


@pytest.mark.parametrize("has_connections", [False, True], ids=["unknown", "connections"])
@pytest.mark.parametrize("per_host", [2, 4])
def test_who_waits_for_a_rank_that_waits_for_the_network(
    per_host: int, has_connections: bool, tmp_path: pathlib.Path
) -> None:
    """Most ranks wait for the first of their host, as long as that one waits for another host."""
    training = Training(
        ranks=2 * per_host,
        per_host=per_host,
        compute=5,
        wire=30,
        has_connections=has_connections,
        busy=0.8,
    )
    assert causes_of(training, tmp_path)["link"].text == "the network between the hosts takes long"


@pytest.mark.parametrize(
    ("busy", "text"),
    [(0.1, "messages between ranks of one host take long"), (0.6, "the network between the hosts")],
)
def test_connections_decide_between_a_host_and_the_network(busy: float, text: str) -> None:
    """Ranks of one host wait for each other for three times as long as for another host."""
    ledgers = [invented_ledger(rank, busy) for rank in range(4)]
    waits = {(0, 1): 3.0, (2, 3): 3.0, (0, 2): 1.0, (2, 0): 1.0}
    assert ledger_slow_link.find(ledgers, waits, share=0.8)[1].startswith(text)


def invented_ledger(rank: int, busy: float) -> Any:
    """Of two ranks on each host, the first has a connection, busy for that share of ten seconds."""
    samples = []
    for second in (0, 10):
        connections = {f"10.0.0.{rank} 10.0.0.{2 - rank}": round(busy * second * 1e6)}
        samples.append(
            SimpleNamespace(
                steady_ns=second * 1_000_000_000, connections={} if rank % 2 else connections
            )
        )
    return SimpleNamespace(rank=rank, facts={"host": f"h{rank // 2}"}, samples=samples)


def test_messages_within_hosts_that_take_long(tmp_path: pathlib.Path) -> None:
    """The network is idle meanwhile, and the first ranks of the hosts wait for nobody."""
    training = Training(ranks=4, per_host=4, compute=5, wire=30)
    link = causes_of(training, tmp_path)["link"]
    assert link.text == "messages between ranks of one host take long, mostly on h0"


# ---- how much longer -----------------------------------------------------------------------------


def test_a_rank_with_three_times_the_batch(tmp_path: pathlib.Path) -> None:
    straggler = causes_of(Training(late={1: ("compute", 40)}), tmp_path)["straggler"]
    assert straggler.text == (
        "rank 1 comes late to collectives: it computes 3.0 times as long as the others, as with a "
        "larger batch or a slower processor"
    )


def test_a_rank_with_three_times_the_batch_on_a_crowded_machine(tmp_path: pathlib.Path) -> None:
    found = causes_of(Training(crowded=1.5, late={1: ("compute", 40)}), tmp_path)
    assert "rank 1 comes late" in found["straggler"].text
    assert "3.0 times as long" in found["straggler"].text


def test_a_crowded_machine_is_named_where_all_work_alike(tmp_path: pathlib.Path) -> None:
    found = causes_of(Training(crowded=1.5), tmp_path)
    assert "straggler" not in found
    assert found["processor"].text.startswith("ranks wait for processors")


def test_a_rank_that_is_a_little_late(tmp_path: pathlib.Path) -> None:
    straggler = causes_of(Training(late={1: ("compute", 3)}), tmp_path)["straggler"]
    assert straggler.text.endswith("it computes longer than the others")


# ---- when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compute", "idle"])
def test_what_happens_in_every_tenth_step(kind: str, tmp_path: pathlib.Path) -> None:
    training = Training(late={0: (kind, 200)}, late_every=10, steps=60)
    found = causes_of(training, tmp_path)["straggler" if kind == "compute" else "launch"]
    assert found.who == 0
    if kind == "compute":  # idle time is known as an average of the job
        assert found.text.endswith(", in every 10th step")


@pytest.mark.parametrize(
    ("seconds", "period"),
    [
        ([], None),
        ([0.0] * 30, None),
        ([1.0] * 30, None),
        ([1.0, 0.0] * 15, 2),
        ([0.01] * 4 + [1.0, 0.9] + [0.01] * 24, None),
        (([0.0] * 9 + [1.0]) * 5, 10),
        (([0.001] * 9 + [1.0]) * 5, 10),
        (([0.1] * 9 + [1.0]) * 5, None),  # half of it is in the other steps
        (([0.0] * 9 + [1.0]) * 2, None),  # too few to tell
        ([1.0 if step in (3, 9, 20, 22, 31) else 0.0 for step in range(40)], None),
    ],
)
def test_periods(seconds: list[float], period: int | None) -> None:
    assert periods.period(seconds) == period


def test_ordinal_numbers() -> None:
    endings = [periods.every(number).split()[1] for number in (2, 3, 10, 11, 12, 13, 21, 22, 111)]
    assert endings == ["2nd", "3rd", "10th", "11th", "12th", "13th", "21st", "22nd", "111th"]


# ---- many small calls ----------------------------------------------------------------------------


def test_many_tiny_calls(tmp_path: pathlib.Path) -> None:
    training = Training(buckets=200, bucket_bytes=2048, wire=0.2, steps=10)
    found = causes_of(training, tmp_path)
    assert "link" not in found
    assert found["calls"].text.startswith("200 tiny calls per step, of 2 KiB at the median")
    assert found["calls"].who is None
    assert found["calls"].seconds == pytest.approx(0.04, rel=0.1)


@pytest.mark.parametrize(("buckets", "size"), [(200, 1 << 20), (5, 2048)], ids=["large", "few"])
def test_calls_that_are_large_or_few(buckets: int, size: int, tmp_path: pathlib.Path) -> None:
    training = Training(buckets=buckets, bucket_bytes=size, wire=0.2, steps=10)
    assert "calls" not in causes_of(training, tmp_path)
