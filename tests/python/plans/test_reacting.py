"""A link of virtual hosts becomes slow while a job runs, and recovers: ranks plan again, twice."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator

import pytest
from q7x2.explain_plan import print_history

from benchmarks import lab as lab_package
from benchmarks.lab import Lab, Topology

HOSTS = 4
GUILTY = 1
# So slow that the links are the bound, however busy the machine is.
RATE = "100mbit"
SLOW_RATE = "20mbit"

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
        (kind,) = [each for each in q7x2.plan_history() if each["bytes"] == tensor.nbytes]
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


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_ranks_plan_around_a_slow_link_and_back(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    rates = iter((SLOW_RATE, RATE))

    def on_line(rank: int, line: str) -> None:
        said.append(line)
        if rank == 0 and line == "steady\n":
            lab.set_rate(GUILTY, next(rates))

    result = lab.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env={
            "OMP_NUM_THREADS": "1",
            "Q7X2_PROBE": "0",
            "Q7X2_REACT": "0.5",
            # One candidate each time: none takes turns.
            "Q7X2_ALGO": "ring,shares",
            "Q7X2_LOG": "info",
        },
        timeout_s=400,
        on_line=on_line,
    )
    histories = [json.loads(rank.output.splitlines()[-1]) for rank in result.ranks]
    assert all(each == histories[0] for each in histories), "all ranks decide alike"
    kind = histories[0]
    changes = kind["rate_changes"]
    assert len(changes) >= 2, "\n".join(said)
    assert f"host h{GUILTY}" in changes[0]["reason"]
    assert "of its measured rate" in changes[0]["reason"]
    assert [each["call"] for each in kind["events"]] == [0, *(each["call"] for each in changes)]
    print_history(kind)
    printed = capsys.readouterr().out
    assert f"planned again from call {changes[1]['call']}: " in printed
