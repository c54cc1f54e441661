"""Groups whose hosts have a slow private link beside the network that they share.

Between the two there is no order: what a rank says on one may overtake what it sent on the other.
"""

from __future__ import annotations

import textwrap

import interpreters
import pytest

from benchmarks.harness import lab as lab_package
from benchmarks.harness.lab import Lab, Topology
from benchmarks.harness.lab.topology import Link

HOSTS = 3
# So slow that a sender is done long before its message has arrived.
LINK_RATE = "8mbit"
NETWORK_RATE = "2mbit"
ELEMENTS = 1 << 19

pytestmark = pytest.mark.skipif(
    lab_package.unavailable() is not None, reason=str(lab_package.unavailable())
)

LEAVING = f"""
    import json, torch, torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("q7x2")
    for root in (0, 0, 1):
        group = dist.new_group()
        tensor = torch.full(({ELEMENTS},), float(dist.get_rank()))
        dist.broadcast(tensor, root, group=group)
        dist.destroy_process_group(group)
        assert tensor.eq(root).all(), root
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert len(json.loads(backend.fabric_json)["links"]) == {HOSTS - 1}
    tensor = torch.full((2 * {ELEMENTS},), float(dist.get_rank()))
    dist.broadcast(tensor, 0)  # its process ends long before all has arrived
    dist.destroy_process_group()
    assert tensor.eq(0).all()
"""


def test_who_leaves_right_after_a_call_is_not_missed() -> None:
    links = tuple(Link(0, host, LINK_RATE) for host in range(1, HOSTS))
    with Lab(Topology(hosts=HOSTS, rate=NETWORK_RATE, links=links)) as lab:
        lab.run(
            [interpreters.python(), "-c", textwrap.dedent(LEAVING)],
            env={"OMP_NUM_THREADS": "1", "Q7X2_PROBE": "force"},
            timeout_s=100,
        )
