"""`python -m benchmarks`: see README.md in this folder."""

from __future__ import annotations

import importlib
import signal
import sys

from benchmarks.lab import LabError
from benchmarks.processes import RanksFailed

# Each has a main(argv); imported when asked for, because most of them import torch.
COMMANDS = {
    "collectives": "collectives over sizes on this machine",
    "network": "collectives over sizes between virtual hosts (root)",
    "sweep": "an all-reduce from 4 B to 64 MiB: its times, its bandwidth, a picture",
    "bars": "the figures q7x2 must reach, each measured and judged",
    "baseline": "rows of bars measured again, beside an earlier result; as --baseline",
    "turns": "rows of bars with two builds of q7x2, in turns",
    "train": "speed and accuracy of trainings with communication hooks (root)",
    "embedding": "communication of an embedding beside DDP over Gloo (root)",
    "policy": "advice beside a sweep, and trainings that diverge (root)",
    "kfac": "steps and seconds to a loss with K-FAC, SGD and Adam; bytes of inverses",
    "forward": "steps whose gathers overlap the next forward, beside DDP (root)",
    "late": "times of steps while one rank is stopped now and then",
    "blocks": "all-reduces that leave out blocks of zeros, beside dense ones (root)",
    "servers": "all-reduces that servers add up, beside those of ranks alone (root)",
    "server_jobs": "two jobs on a server with too few slots, beside the same without it (root)",
    "tensor_parallel": "an MLP in tensor parallelism, with overlap and without (root)",
    "slow": "outer steps per second with one slow rank, DiLoCo and a quorum",
    "rejoin": "the loss of a DiLoCo training whose host is killed and joins again",
    "choices": "the choice with default settings beside every algorithm and order (root)",
    "degraded": "steps after something has become slow, beside those of a fresh probe (root)",
    "strangers": "steps of a training while a stranger attacks its ports (root)",
    "reacting": "steps of a job while a link becomes slow and recovers (root)",
    "codecs": "codecs on one core: bits, error, speed",
    "lanes": "arithmetic of one process with one thread and with two",
    "gpu": "all tests and benchmarks that need a real GPU; as ./dev gpu",
    "device": "what calls on device tensors cost: time of the host, copies, bytes on the bus",
    "groups": "the short calls of one group beside the long ones of another",
    "faults": "how soon ranks are released when others fail, beside the contract",
    "planning": "how long it takes to plan a call, from 64 to 4,096 ranks",
    "causes": "whether q7x2 why names the cause of slow steps that was put in (root)",
    "verdicts": "how often the verdicts of q7x2 experiment are right",
    "ledger": "what the ledger costs, and how long its report takes",
    "recorder": "what the flight recorder costs",
    "model": "the simulator's predictions beside measured times",
    "topk": "exact top-k on one core, beside torch.topk",
    "pages": "the tables of figures in README.md and docs/, written from the results files",
    "lab": "virtual hosts on this machine: up, run, status, down (root)",
}
PACKAGES = ("faults", "gpu", "lab", "policy", "train")


def main(argv: list[str]) -> int:
    if any(each.partition("=")[0] == "--baseline" for each in argv) and argv[0] not in COMMANDS:
        argv = ["baseline", *argv]
    if not argv or argv[0] not in COMMANDS:
        print("usage: python -m benchmarks COMMAND [--help]\n")
        for name, text in COMMANDS.items():
            print(f"  {name:15} {text}")
        return 0 if argv in (["-h"], ["--help"]) else 2
    package = f"benchmarks.{argv[0]}"
    module = importlib.import_module(f"{package}.cli" if argv[0] in PACKAGES else package)
    # `timeout` and job systems send SIGTERM: end the ranks and take the lab down on it too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        module.main(argv[1:])
    except (LabError, RanksFailed, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
