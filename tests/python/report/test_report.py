"""``q7x2 trace`` and ``q7x2 report``: what they make of ledgers that are known."""

from __future__ import annotations

import gzip
import html.parser
import json
import pathlib
import re
from collections import Counter

import pytest
from ledger_files import MILLISECOND, Training, operation, write_ledger
from q7x2 import cli
from q7x2.cli import trace
from q7x2.ledger import reader as ledger_reader
from q7x2.ledger import summary as ledger_summary

BEHIND = 7_000_000_000  # the steady clock of rank 1's host


@pytest.fixture
def ledgers(tmp_path: pathlib.Path) -> pathlib.Path:
    """Rank 1 has one operation more, which overlaps the first and failed before it began."""
    second = operation(
        id=2, started_ns=None, error="aborted", waited_ns=0, waited_for=None, predicted_ns=None
    )
    write_ledger(tmp_path, 0, [operation()])
    write_ledger(tmp_path, 1, [operation(waited_for=0), second], BEHIND)
    return tmp_path


def test_the_trace_has_all_ranks_on_one_clock(ledgers: pathlib.Path) -> None:
    assert cli.main(["trace", str(ledgers)]) == 0
    events = json.loads((ledgers / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    calls = [event for event in slices if event["cat"] == "operation"]
    assert [(call["pid"], call["ts"], call["dur"]) for call in calls] == [
        (0, 0, 11_000),
        (1, 0, 11_000),
        (1, 0, 11_000),
    ]
    assert calls[1]["tid"] != calls[2]["tid"]  # they overlap
    assert calls[0]["args"]["slowest_peer"] == 1
    assert calls[0]["args"]["plan"] == "ring"
    assert calls[2]["args"]["error"] == "aborted"
    phases = [
        (e["name"], e["ts"], e["dur"]) for e in slices if e["cat"] == "phase" and not e["pid"]
    ]
    assert phases == [
        ("queued", 0, 1000),
        ("copy", 1000, 1000),
        ("reduce", 2000, 2000),
        ("waited", 4000, 6000),
    ]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0 (<h0>, pid 100)", "rank 1 (<h1>, pid 101)"}


def test_phases_of_several_threads_stay_inside_the_operation(tmp_path: pathlib.Path) -> None:
    write_ledger(tmp_path, 0, [operation(reduce_ns=50 * MILLISECOND)])
    path = tmp_path / "trace.json.gz"
    assert trace.write(ledger_reader.read(tmp_path), path) == 1
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    phases = [event for event in events if event.get("cat") == "phase"]
    assert max(event["ts"] + event["dur"] for event in phases) <= 11_000
    (reduce,) = [event for event in phases if event["name"] == "reduce"]
    assert reduce["args"]["ns"] == 50 * MILLISECOND


def test_the_summary_adds_up(ledgers: pathlib.Path) -> None:
    summary = ledger_summary.summarize(ledger_reader.read(ledgers))
    assert summary.seconds == pytest.approx(0.011)
    assert [each.operations for each in summary.ranks] == [1, 2]
    assert [each.lost for each in summary.ranks] == [0, 1]
    assert summary.waited_for == {(0, 1): pytest.approx(0.003), (1, 0): pytest.approx(0.003)}
    assert summary.phase("waited") == pytest.approx(0.012)
    assert summary.phase("other") == pytest.approx(0.002)
    assert sum(summary.phase(phase) for phase in ledger_summary.PHASES) == pytest.approx(0.02)
    (kind,) = summary.kinds
    assert len(kind.durations) == 2
    assert kind.failed == 1
    assert kind.network == 3 << 20
    assert summary.predicted_ratio() == pytest.approx(2)
    # Of 11 ms, both ranks were in an operation for 10 ms.
    assert sum(map(sum, (each.values() for each in summary.bins))) == pytest.approx(10 / 11)


def test_bins_share_what_spans_several(tmp_path: pathlib.Path) -> None:
    long = operation(finished_ns=1001 * MILLISECOND, waited_ns=1000 * MILLISECOND, copy_ns=0)
    write_ledger(tmp_path, 0, [long | {"reduce_ns": 0}])
    bins = ledger_summary.summarize(ledger_reader.read(tmp_path)).bins
    assert len(bins) == 10
    for each in bins[1:]:
        assert each["waited"] == pytest.approx(1)
    assert bins[0]["waited"] == pytest.approx(99.1 / 100.1)


class Page(html.parser.HTMLParser):
    """What a page refers to, and whether its tags match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "line", "polyline"):
            self.open.append(tag)
        self.references += [value or "" for name, value in attributes if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(ledgers: pathlib.Path) -> None:
    path = ledgers / "page.html"
    assert cli.main(["report", str(ledgers), "--out", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.references == []
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert "url(" not in text
    assert "prefers-color-scheme:dark" in text
    assert "&lt;g&gt;" in text
    assert "<g>" not in text
    assert "a &amp; b" in text
    for title in ("Time by phase", "Bytes by kind and link", "Predicted and measured"):
        assert f"<h2>{title}</h2>" in text
    assert "rank 0 waited 3 ms for rank 1" in text


def test_a_page_of_nothing_is_a_page(tmp_path: pathlib.Path) -> None:
    write_ledger(tmp_path, 0, [])
    assert cli.main(["report", str(tmp_path)]) == 0
    assert Page((tmp_path / "report.html").read_text()).open == []


def test_two_jobs_are_side_by_side(tmp_path: pathlib.Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for directory, late in ((fast, {}), (slow, {2: ("compute", 20.0)})):
        directory.mkdir()
        Training(late=late, loss_every=2, watts=100).write(directory)
    prices = tmp_path / "prices.toml"
    prices.write_text("node_hour = 2\nkwh = 0.3\n")
    out = tmp_path / "both.html"
    arguments = ["report", str(fast), str(slow), "--out", str(out), "--prices", str(prices)]
    assert cli.main([*arguments, "--target-loss", "0.1"]) == 0
    text = out.read_text()
    page = Page(text)
    assert page.open == []
    assert page.references == []
    for title in ("Critical path", "Loss", "Costs", "Operations"):
        assert text.count(f"<h2>{title}</h2>") == 2
    rows = dict(re.findall(r"<tr><td>(.*?)</td>.*?([^<>]*)</td></tr>", text))
    assert float(rows["step"].rstrip(" %")) == pytest.approx(100 * 20 / 26, rel=0.1)
    assert rows["money"].startswith("+")
    assert "<li>slow: rank 2 comes late" in text


def test_two_jobs_have_the_same_axes(tmp_path: pathlib.Path) -> None:
    """Of which one has steps that are ten times as long."""
    jobs = []
    for name, compute, steps in (("fast", 20.0, 20), ("slow", 400.0, 60)):
        jobs.append(tmp_path / name)
        jobs[-1].mkdir()
        Training(compute=compute, steps=steps, loss_every=1).write(jobs[-1])
    out = tmp_path / "both.html"
    assert cli.main(["report", *map(str, jobs), "--out", str(out)]) == 0
    text = out.read_text()
    axes = re.findall(r'<div class="axis">(.*?)</div>', text)
    ends = re.findall(r"<h3>over (.*?)</h3>.*?<div class=.times.>(.*?)</div>", text)
    assert len(ends) == 6
    assert len(axes) >= 8
    assert all(count % 2 == 0 for count in Counter(axes).values())
    for title in ("steps", "seconds", "bytes sent"):
        (one, other) = [end for name, end in ends if name == title]
        assert one == other
    widths = [float(width) for width in re.findall(r'class="compute" style="width:(.*?)%', text)]
    assert widths[1] / widths[0] == pytest.approx(20, rel=0.1)
    rows = dict(re.findall(r"<tr><td>(.*?)</td>.*?([^<>]*)</td></tr>", text))
    assert rows["step"].endswith(" x")
    assert not re.search(r"\+\d{3,}", "".join(rows.values()))


def test_a_loss_that_is_not_reached_is_said_on_the_page(tmp_path: pathlib.Path) -> None:
    jobs = []
    for name, steps in (("long", 50), ("short", 5)):
        jobs.append(tmp_path / name)
        jobs[-1].mkdir()
        Training(loss_every=1, steps=steps, watts=100).write(jobs[-1])
    prices = tmp_path / "prices.toml"
    prices.write_text("node_hour = 2\n")
    out = tmp_path / "both.html"
    arguments = ["report", *map(str, jobs), "--out", str(out), "--prices", str(prices)]
    assert cli.main([*arguments, "--target-loss", "0.05"]) == 0
    text = out.read_text()
    assert "to a loss of 0.05 (step 19)" in text
    assert "to a loss of 0.05: no step has a loss of 0.05 or less; the lowest is 0.166667" in text


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ("a/fast", "a/slow", ("fast", "slow")),
        ("monday/run", "tuesday/run", ("monday/run", "tuesday/run")),
        ("run", "run", None),
    ],
)
def test_jobs_are_named_by_what_differs(
    one: str, other: str, names: tuple[str, str] | None, tmp_path: pathlib.Path
) -> None:
    for each in {one, other}:
        (tmp_path / each).mkdir(parents=True)
        Training(steps=5).write(tmp_path / each)
    out = tmp_path / "both.html"
    assert (
        cli.main(["report", *(str(tmp_path / each) for each in (one, other)), "--out", str(out)])
        == 0
    )
    expected = names or (str(tmp_path / one),) * 2
    assert f"<h1>q7x2 report: {expected[0]} and {expected[1]}</h1>" in out.read_text()


def test_a_long_run_has_a_small_page(tmp_path: pathlib.Path) -> None:
    Training(ranks=8, steps=300, buckets=2, loss_every=1, watts=100).write(tmp_path)
    assert cli.main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").stat().st_size < 200_000


@pytest.mark.parametrize("command", ["trace", "report"])
def test_a_directory_without_ledgers_is_an_error(
    command: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, str(tmp_path)]) == 1
    assert "has no ledger" in capsys.readouterr().err
