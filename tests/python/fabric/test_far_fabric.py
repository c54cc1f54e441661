"""The Fabric of far hosts: a group is made by latencies, and measures rates while it is in use."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest
from wide_packets import python

from tests.lab import Line, WideLab, WideTopology, wide

pytestmark = pytest.mark.skipif(bool(wide.unavailable()), reason=str(wide.unavailable()))

BEGIN = """
    import json, os, sys, time
    import torch
    import torch.distributed as dist
    import q7x2

    begun = time.monotonic()
    dist.init_process_group("q7x2")
    took = time.monotonic() - begun
    rank, size = dist.get_rank(), dist.get_world_size()

    def total(elements, group=None):
        values = torch.ones(elements)
        dist.all_reduce(values, group=group)
        return values[-1].item()
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[WideLab]:
    """Two sites with a host each."""
    with WideLab(WideTopology(line=Line(rate="200mbit", rtt="40ms"))) as lab:
        yield lab


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def run(lab: WideLab, text: str, **env: str) -> list[str]:
    ended = lab.run(python(BEGIN + text), env=env, timeout_s=60)
    return [rank.output.splitlines()[-1] if rank.output else "" for rank in ended.ranks]


@pytest.mark.usefixtures("cache")
def test_all_ranks_learn_the_rates_at_the_same_call(lab: WideLab) -> None:
    text = """
    subgroup = dist.new_group([1, 0])
    short = [total(1), total(1, subgroup)]
    late = dist.all_reduce(torch.ones(1), async_op=True)  # planned by the latencies
    if rank == 1:
        time.sleep(0.5)  # this rank learns them while the other one waits
    long = [total(1 << 18, subgroup), total(1 << 18), total(1)]
    late.wait()
    again = dist.new_group([0, 1])
    fabrics = [q7x2.fabric.of_group(group) for group in (None, again, subgroup)]
    print(json.dumps([short + long + [total(1 << 18, again)], fabrics]))
    dist.destroy_process_group()
    """
    first, second = (json.loads(said) for said in run(lab, text))
    assert first == second
    sums, fabrics = first
    assert sums == [2] * 6
    for fabric in fabrics:
        assert fabric["made"]["source"] == "probe"
        assert fabric["network"]["measured"]
        assert all(0.02 < pair["alpha"] < 0.1 for pair in fabric["pairs"])
        assert all(host["egress"] not in {0, 1.25e8} for host in fabric["hosts"])


@pytest.mark.usefixtures("cache")
def test_the_next_start_finds_the_rates(lab: WideLab) -> None:
    text = """
    total(1 << 18)
    fabric = q7x2.fabric.of_group()
    print(json.dumps(fabric["made"]["time"]))
    dist.destroy_process_group()
    """
    first = run(lab, text)
    assert run(lab, text) == first
    assert len(set(first)) == 1


@pytest.mark.nightly("the same probe at another time")
@pytest.mark.usefixtures("cache")
def test_a_forced_probe_measures_everything_at_once(lab: WideLab) -> None:
    text = """
    began = time.monotonic()
    fabric = q7x2.fabric.of_group()
    print(json.dumps([fabric["made"]["source"], time.monotonic() - began < 0.1]))
    dist.destroy_process_group()
    """
    assert run(lab, text, Q7X2_PROBE="force") == ['["probe", true]'] * 2


@pytest.mark.parametrize(
    ("pause", "end"),
    [
        pytest.param("0", "dist.destroy_process_group()", id="before the probe begins"),
        pytest.param(
            "1.2",
            "pass",
            id="while it measures, without an end",
            marks=pytest.mark.nightly("the same at another time"),
        ),
    ],
)
def test_a_program_that_ends_does_not_wait_for_rates(
    lab: WideLab, cache: pathlib.Path, pause: str, end: str
) -> None:
    """Rates that it had waited for would be in the catalogue."""
    text = f"""
    time.sleep({pause})
    assert total(1) == 2
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    total(1)
    {end}
    print("ended")
    """
    assert run(lab, text) == ["ended", "ended"]
    assert not list(cache.rglob("*.json"))
