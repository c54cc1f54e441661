"""`python -m benchmarks`: see README.md in this folder."""

from __future__ import annotations

import importlib
import sys
from functools import partial

from tests.lab import command

# Imported when asked for, because most of them import torch.
COMMANDS = {
    "collectives": "collectives over sizes, on this machine or on virtual hosts (root)",
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
    "choices": "the choice with default settings beside every algorithm and order (root)",
    "distance": "all-reduces between distant sites, with losses and without (root)",
    "windows": "puts and signals between two ranks of this host, beside messages",
    "nat": "all-reduces between distant sites with NAT, with a relay and without (root)",
    "wan": "time to the same loss between distant sites, beside DDP over Gloo (root)",
    "degraded": "steps after something has become slow, beside those of a fresh probe (root)",
    "reacting": "steps of a job while a link becomes slow and recovers (root)",
    "codecs": "codecs on one core: bits, error, speed",
    "lanes": "arithmetic of one process with one thread and with two",
    "device": "what calls on device tensors cost: time of the host, copies, bytes on the bus",
    "groups": "the short calls of one group beside the long ones of another",
    "generators": "which algorithm is predicted to be best, on networks at random",
    "planning": "how long it takes to plan a call, from 64 to 4,096 ranks",
    "ledger": "what the ledger costs, and how long its report takes",
    "recorder": "what the flight recorder costs",
    "model": "the simulator's predictions beside measured times",
    "topk": "exact top-k on one core, beside torch.topk",
}
# Those that are no file of studies/.
MODULES = {
    "bars": "regress.bars",
    "baseline": "regress.baseline",
    "turns": "regress.turns",
    "train": "studies.train.cli",
}


def main(argv: list[str]) -> int:
    if any(each.partition("=")[0] == "--baseline" for each in argv) and argv[0] not in COMMANDS:
        argv = ["baseline", *argv]
    if not argv or argv[0] not in COMMANDS:
        print("usage: python -m benchmarks COMMAND [--help]\n")
        for name, text in COMMANDS.items():
            print(f"  {name:15} {text}")
        return 0 if argv in (["-h"], ["--help"]) else 2
    name = MODULES.get(argv[0], f"studies.{argv[0]}")
    module = importlib.import_module(f"benchmarks.{name}")
    study = importlib.import_module("benchmarks.harness.study")
    run = module.main if hasattr(module, "main") else partial(study.main, module)
    return command.run(run, argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
