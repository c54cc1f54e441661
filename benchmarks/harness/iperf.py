"""What the links of a lab carry at most: `iperf3 --bidir` between two of its virtual hosts.

The token bucket bounds a virtual link, and so do the machine's cores, which copy every packet.
iperf3 meets both bounds and computes nothing, so long collectives move their bytes no faster.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import Any

from benchmarks.harness.lab import Lab, LabError, Topology

_SECONDS = 3
# The client tries until the server listens, for 10 s at least. With --json its exit status is 0
# also if it has reached nobody.
_RANK = f"""
if [ "$RANK" = 0 ]; then
  exec iperf3 --server --one-off --bind "$MASTER_ADDR" --port "$MASTER_PORT"
fi
client="iperf3 --client $MASTER_ADDR --port $MASTER_PORT"
for attempt in $(seq 50); do
  said=$($client --bidir --time {_SECONDS} --json)
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
        client = lab.run(["sh", "-c", _RANK], timeout_s=60).ranks[1]
    return {"tool": "iperf3 --bidir", "seconds": _SECONDS, "bits_per_second": rates(client.output)}


def rates(said: str) -> list[float]:
    """The rates in the client's report: from the client to the server, and back."""
    try:
        report = json.loads(said)
        return [
            float(report["end"][key]["bits_per_second"])
            for key in ("sum_received", "sum_received_bidir_reverse")
        ]
    except (ValueError, KeyError) as error:
        raise LabError(f"iperf3 gave no rates ({error!r}): {said.strip()[-500:]}") from None
