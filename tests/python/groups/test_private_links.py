"""Groups whose hosts have a slow private link beside the network that they share.

Between the two there is no order: what a rank says on one may overtake what it sent on the other.
"""

from __future__ import annotations

import json
import pathlib
import textwrap

import interpreters
import pytest
from harness import wait_until

from tests import lab as lab_package
from tests.lab import Lab, Topology
from tests.lab.namespaces import call
from tests.lab.topology import Link

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


PRINTS_LINKS = """
    import json, torch, torch.distributed as dist

    dist.init_process_group("q7x2")
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    print("links:", len(json.loads(backend.fabric_json)["links"]))
    dist.destroy_process_group()
"""


def set_link(lab: Lab, state: str) -> None:
    """Returns when both hosts have it so: the kernel tells the other end up to a second later."""
    for host in range(2):
        call(*lab.enter(host), "ip", "link", "set", "link0", state)
    for host in range(2):
        show = (*lab.enter(host), "ip", "-j", "link", "show", "link0")
        wait_until(lambda show=show: json.loads(call(*show))[0]["operstate"] == state.upper())


def test_a_link_that_was_not_there_before_is_measured(tmp_path: pathlib.Path) -> None:
    """What the catalogue has of the same hosts without it does not count, and the reverse."""
    with Lab(Topology(hosts=2, rate="100mbit", links=(Link(0, 1, "500mbit"),))) as lab:
        for state, links in (("down", 0), ("up", 1), ("down", 0)):
            set_link(lab, state)
            result = lab.run(
                [interpreters.python(), "-c", textwrap.dedent(PRINTS_LINKS)],
                env={"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)},
                timeout_s=100,
            )
            assert f"links: {links}" in result.ranks[0].output, state
    assert len(list(tmp_path.glob("q7x2/*.json"))) == 2
