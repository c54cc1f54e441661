"""Does `q7x2 why` name the cause of slow steps first? Each cause is put in on purpose.

A small training runs with the ledger on, once per run and cause:

- `processor`: one rank gets half of a processor (a cgroup's quota).
- `launch`: one rank sleeps before its backward.
- `codec`: gradients are sent with an exact top-k selection over shared memory, where not
  compressing them would be faster.
- `link`: of four virtual hosts, one has a fifth of the others' rate.

Counted are the runs in which the first cause has the right kind, and blames the right rank, codec
or host. Causes take turns, so that a busy moment of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, facts, ranks, report
from tests.diagnoses.processor_quota import ProcessorQuota
from tests.lab import Lab, Topology

GOAL = 19  # of 20
GUILTY = 1
RATE = "500mbit"
SLOW_RATE = "100mbit"
EXPECTED: dict[str, tuple[str, Any]] = {
    "processor": ("processor", GUILTY),
    "launch": ("launch", GUILTY),
    "codec": ("codec", "topk:0.1"),
    "link": ("link", f"h{GUILTY}"),
}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.diagnoses causes", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="of each cause")
    parser.add_argument("--steps", type=int, default=100, help="of each training")
    parser.add_argument("--only", nargs="+", choices=EXPECTED, default=list(EXPECTED))
    parser.add_argument("--out", type=Path, default=RESULTS / "causes.json")
    args = parser.parse_args(argv)
    machine = facts.collect()
    said: dict[str, list[dict[str, Any]]] = {cause: [] for cause in args.only}
    rows: list[dict[str, Any]] = []
    for run in range(args.runs):
        for cause in args.only:
            said[cause].append(measure(cause, args.steps))
        rows = [row(cause, each) for cause, each in said.items()]
        report.write_json(args.out, machine, {"steps": args.steps, "rows": rows})
        right = ", ".join(f"{each['cause']} {each['right']}" for each in rows)
        print(f"{run + 1} of {args.runs} runs of each cause; named first: {right}", flush=True)
    for each in rows:
        print(f"{each['cause']:10} named first in {each['right']} of {each['runs']} runs")
        for text in each["wrong"]:
            print(f"{'':10} said instead: {text}")
    print(f"goal: {GOAL} of 20 each")


def row(cause: str, said: list[dict[str, Any]]) -> dict[str, Any]:
    """How often the cause was named, and what was said instead."""
    firsts = [each["causes"][0] for each in said]
    wrong = [each["text"] for each in firsts if (each["kind"], each["who"]) != EXPECTED[cause]]
    return {
        "cause": cause,
        "runs": len(said),
        "right": len(said) - len(wrong),
        "wrong": wrong,
        "parts": [each["parts"] for each in said],
        "seconds": [each["seconds"] for each in said],
    }


def measure(cause: str, steps: int) -> dict[str, Any]:
    """What `q7x2 why` says about one training, as plain values."""
    from q7x2.cli import why
    from q7x2.ledger import causes as ledger_causes
    from q7x2.ledger import reader as ledger_reader

    with tempfile.TemporaryDirectory() as folder:
        spec = {"cause": cause, "steps": steps, "quota": ""}
        env = {"Q7X2_LEDGER": folder}
        if cause == "link":
            with Lab(Topology(hosts=4, rate=RATE)) as lab:
                lab.set_rate(GUILTY, SLOW_RATE)
                ranks.run(__name__, spec, lab=lab, env=env, own_cache=False, timeout_s=600)
        elif cause == "processor":
            with ProcessorQuota(0.5) as quota:
                spec["quota"] = str(quota.members)
                ranks.run(__name__, spec, 2, env=env, timeout_s=600)
        else:
            ranks.run(__name__, spec, 2, env=env, timeout_s=600)
        return why.facts(ledger_causes.analyse(ledger_reader.read(Path(folder))))


def rank_main(spec: dict[str, Any]) -> None:
    """One rank of a training."""
    import q7x2
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("q7x2")
    is_guilty = dist.get_rank() == GUILTY
    if spec["quota"] and is_guilty:
        Path(spec["quota"]).write_text(str(os.getpid()))
    width = 1024 if spec["cause"] == "codec" else 512
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
    ddp = DistributedDataParallel(model)
    if spec["cause"] == "codec":
        q7x2.attach(ddp, q7x2.TopK(0.1, start_iter=0))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    batch = torch.randn(1 if spec["cause"] == "codec" else 64, width)
    for _ in range(spec["steps"]):
        optimizer.zero_grad()
        loss = ddp(batch).square().mean()
        if spec["cause"] == "launch" and is_guilty:
            time.sleep(0.05)
        loss.backward()
        optimizer.step()
        q7x2.log_step()
    dist.destroy_process_group()
