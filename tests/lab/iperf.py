"""What the links of a lab carry at most: iperf3 between two of its virtual hosts.

iperf3 meets the bounds of a link, and those of the machine's cores, which copy every packet. It
computes nothing, so long collectives move their bytes no faster.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.lab import Hosts, Lab, LabError, Topology

_SECONDS = 3
# The rates in the client's report: from the client to the server, and back.
_BOTH_WAYS = ("sum_received", "sum_received_bidir_reverse")
# The client tries until the server listens, for 10 s at least. With --json its exit status is 0
# also if it has reached nobody.
_RANK = """
if [ "$RANK" = 0 ]; then
  exec iperf3 --server --one-off --bind "$MASTER_ADDR" --port "$MASTER_PORT"
fi
client="iperf3 --client $MASTER_ADDR --port $MASTER_PORT"
for attempt in $(seq 50); do
  said=$($client --json "$@")
  case "$said" in *unable\\ to\\ connect*) sleep 0.2 ;; *) break ;; esac
done
echo "$said"
"""


def unavailable() -> str | None:
    """Why the bound cannot be measured here, or None."""
    if shutil.which("iperf3") is None:
        return "iperf3 not found: apt-get install iperf3"
    return None


def both_ways(topology: Topology) -> dict[str, Any]:
    """Runs iperf3 in both directions at once between the first two hosts of `topology`.

    Returns:
        `bits_per_second` received by the server and by the client, payload without headers.
    """
    with Lab(replace(topology, hosts=2, racks=1, uplink=None, links=())) as lab:
        said = _run(lab, "--bidir", "--time", _SECONDS)
    return {"tool": "iperf3 --bidir", "seconds": _SECONDS, "bits_per_second": rates(said)}


def one_way(lab: Hosts[Any], connections: int, seconds: int, omitted: int) -> float:
    """Bits per second of payload from the second host of a lab of two hosts to the first one.

    The first `omitted` seconds, in which TCP starts, are measured by nobody.
    """
    said = _run(lab, "--parallel", connections, "--time", seconds, "--omit", omitted)
    return rates(said, _BOTH_WAYS[:1])[0]


def _run(lab: Hosts[Any], *options: object) -> str:
    """What the client says, on the second host."""
    command = ["sh", "-c", _RANK, "iperf", *map(str, options)]
    return lab.run(command, timeout_s=180).ranks[1].output


def rates(said: str, keys: Sequence[str] = _BOTH_WAYS) -> list[float]:
    """The rates in the client's report: from the client to the server, and back."""
    try:
        report = json.loads(said)
        return [float(report["end"][key]["bits_per_second"]) for key in keys]
    except (ValueError, KeyError) as error:
        raise LabError(f"iperf3 gave no rates ({error!r}): {said.strip()[-500:]}") from None
