"""Virtual hosts whose links or processors become slow while a job runs, and recover.

Ranks plan again, twice.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from q7x2.plan.explain import print_history

from tests import lab as lab_package
from tests.diagnoses.processor_quota import ProcessorQuota
from tests.lab import Lab, Topology
from tests.lab.topology import UNSHAPED, Link

HOSTS = 4
GUILTY = 1
# So slow that the links are the bound, however busy the machine is.
RATE = "100mbit"
SLOW_RATE = "20mbit"
# Of a processor. The other hosts have no quota.
SLOW_SHARE = 0.05
FULL_SHARE = 4.0
SLOW = rf"host h{GUILTY} computes at \d+ %"
RECOVERED = f"host h{GUILTY} computes at its measured rate again"

pytestmark = pytest.mark.skipif(
    lab_package.unavailable() is not None, reason=str(lab_package.unavailable())
)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(Topology(hosts=HOSTS, rate=RATE)) as it:
        yield it


# Each rank makes the same calls, because all learn of a change before the same call.
SCRIPT = """
    import json, torch, torch.distributed as dist, q7x2

    torch.set_num_threads(1)
    dist.init_process_group("q7x2")
    world = dist.get_world_size()
    tensor = torch.empty(1 << 20)

    def call():
        tensor.fill_(1)
        dist.all_reduce(tensor)
        assert tensor.eq(world).all()

    def history():
        (kind,) = [each for each in q7x2.plan.plan_history() if each["bytes"] == tensor.nbytes]
        return kind

    for _ in range(20):
        call()
    for changes in (1, 2):
        print("steady", flush=True)
        calls = 0
        while len(history()["rate_changes"]) < changes and calls < 300:
            call()
            calls += 1
        for _ in range(16):
            call()
    print(json.dumps(history()), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.nightly("minutes: waits until rates are believed")
@pytest.mark.timeout(420)
def test_ranks_plan_around_a_slow_link_and_back(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = iter((SLOW_RATE, RATE))
    kind, said = _run(lab, SCRIPT, "ring,shares", lambda: lab.set_rate(GUILTY, next(rates)))
    changes = kind["rate_changes"]
    assert len(changes) >= 2, "\n".join(said)
    assert f"host h{GUILTY}" in changes[0]["reason"]
    assert "of its measured rate" in changes[0]["reason"]
    assert [each["call"] for each in kind["events"]] == [0, *(each["call"] for each in changes)]
    print_history(kind)
    printed = capsys.readouterr().out
    assert f"planned again from call {changes[1]['call']}: " in printed


@pytest.mark.nightly("a minute: waits until rates are believed")
@pytest.mark.timeout(420)
def test_ranks_name_a_slow_private_link_and_do_without_it() -> None:
    links = tuple(Link(host, (host + 1) % HOSTS, "200mbit") for host in range(HOSTS))
    script = SCRIPT.replace("for changes in (1, 2)", "for changes in (1,)")
    with Lab(Topology(hosts=HOSTS, rate=RATE, links=links)) as lab:
        kind, said = _run(
            lab, script, "", lambda: lab.set_link_rate(0, SLOW_RATE), {"Q7X2_PROBE": "force"}
        )
    reasons = "; ".join(each["reason"] for each in kind["rate_changes"])
    named = re.findall(r"host h(\d) sends to host h(\d) over their private link", reasons)
    assert {frozenset(pair) for pair in named} == {frozenset("01")}, "\n".join(said)


# As above. Until a change of a processor is known, or for so many calls.
PROCESSOR_SCRIPT = """
    import json, re, torch, torch.distributed as dist, q7x2

    torch.set_num_threads(1)
    dist.init_process_group("q7x2")
    tensor = torch.ones(1 << 22)

    def reasons():
        (kind,) = [each for each in q7x2.plan.plan_history() if each["bytes"] == tensor.nbytes]
        return [each["reason"] for each in kind["rate_changes"]]

    def call_until(text, most):
        for _ in range(most):
            dist.all_reduce(tensor)
            if any(re.search(text, each) for each in reasons()):
                return

    for _ in range(150):
        dist.all_reduce(tensor)
    print("steady", flush=True)
    call_until(SLOW, 150)
    print("steady", flush=True)
    call_until(RECOVERED, 600)
    print(json.dumps(reasons()), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.nightly("minutes: waits until rates are believed")
@pytest.mark.timeout(420)
def test_ranks_notice_a_slow_processor_and_its_recovery() -> None:
    try:
        with ProcessorQuota(FULL_SHARE) as quota:
            reasons = _under_quota(quota)
    except OSError as error:
        pytest.skip(f"no cgroups here: {error}")
    slow = next(i for i, each in enumerate(reasons) if re.search(SLOW, each))
    recovered = next(i for i, each in enumerate(reasons) if RECOVERED in each)
    assert slow < recovered, reasons


def _under_quota(quota: ProcessorQuota) -> list[str]:
    """What ranks say on hosts whose links are so fast that processors are the bound."""
    shares = iter((SLOW_SHARE, FULL_SHARE))
    with Lab(Topology(hosts=HOSTS, rate=UNSHAPED)) as lab:

        def change_share() -> None:
            quota.set(next(shares))
            for pid in lab.pids(GUILTY):
                quota.members.write_text(str(pid))

        script = f"SLOW, RECOVERED = {SLOW!r}, {RECOVERED!r}\n" + textwrap.dedent(PROCESSOR_SCRIPT)
        reasons, _ = _run(lab, script, "ring", change_share)
    return reasons


def _run(
    lab: Lab,
    script: str,
    algorithms: str,
    disturb: Callable[[], None],
    env: dict[str, str] | None = None,
) -> tuple[Any, list[str]]:
    """What all ranks print last, as JSON, and all lines. "steady" of rank 0 asks to disturb."""
    said = []

    def on_line(rank: int, line: str) -> None:
        said.append(line)
        if rank == 0 and line == "steady\n":
            disturb()

    result = lab.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={
            "OMP_NUM_THREADS": "1",
            "Q7X2_PROBE": "0",
            "Q7X2_REACT": "0.5",
            # One candidate each time: none takes turns.
            "Q7X2_ALGO": algorithms,
            "Q7X2_LOG": "info",
            **(env or {}),
        },
        timeout_s=400,
        on_line=on_line,
    )
    answers = [json.loads(rank.output.splitlines()[-1]) for rank in result.ranks]
    assert all(each == answers[0] for each in answers), "all ranks decide alike"
    return answers[0], said
