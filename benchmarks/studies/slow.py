"""Outer steps per second with one slow rank: DiLoCo beside a quorum, with and without balance.

Ranks on this machine train a small network. One of them waits after each inner step, so that its
steps take some times as long. All methods train for the same time, from the same weights. The loss
is that of the shared weights on data that no rank has seen.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import facts, launch, report
from benchmarks.harness.processes import run_ranks

RESULTS = Path(__file__).parents[1] / "results"
METHODS: dict[str, dict[str, Any] | None] = {
    "DiLoCo": None,
    "quorum": {"grace": 0.02, "takeover": 0.2},
    "quorum, balanced": {"grace": 0.02, "takeover": 0.2, "balance": True},
}
STEP_SECONDS = 0.02  # of a fast rank's inner step, at least


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks slow", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--times", type=float, default=3.0, help="how much slower rank 1 is")
    parser.add_argument("--every", type=int, default=20, help="inner steps per outer step")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each method")
    parser.add_argument("--out", type=Path, default=RESULTS / "slow.json")
    args = parser.parse_args(argv)
    if args.ranks < 3 or args.times < 1:
        raise ValueError("--ranks must be at least 3, and --times at least 1")
    spec = {name: getattr(args, name) for name in ("ranks", "times", "every", "seconds")}
    with tempfile.TemporaryDirectory(prefix="q7x2-slow-") as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.studies.slow", json.dumps(spec), str(out)]
        env = {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": launch.python_path(),
        }
        environments = launch.rank_environments(args.ranks, env)
        run_ranks([command] * args.ranks, environments, len(METHODS) * args.seconds + 300)
        figures = json.loads(out.read_text())
    machine = facts.collect()
    report.write_json(args.out, machine, {**spec, "methods": figures})
    console = report.console()
    report.print_facts(console, machine)
    for method, each in figures.items():
        console.print(
            f"{method:17} {each['outer_steps'] / each['seconds']:.2f} outer steps per second, loss "
            f"{each['loss']:.4f} after {each['seconds']:.1f} s",
            markup=False,
        )


# ---- one rank -----------------------------------------------------------------------------------


def rank_main(spec: dict[str, Any], out: Path) -> None:
    """Rank 0 writes the figures of each method to ``out``."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("q7x2")
    figures = {method: train(spec, options) for method, options in METHODS.items()}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(figures))
    dist.barrier()
    dist.destroy_process_group()


def train(spec: dict[str, Any], options: dict[str, Any] | None) -> dict[str, Any]:
    import q7x2
    import torch
    import torch.distributed as dist
    from torch import nn

    rank = dist.get_rank()
    pause = STEP_SECONDS * (spec["times"] if rank == 1 else 1.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    quorum = options is not None
    diloco: Any = (
        q7x2.QuorumDiLoCo(model, inner, every=spec["every"], **options)
        if options is not None
        else q7x2.DiLoCo(model, inner, every=spec["every"])
    )

    def loss(generator: torch.Generator) -> torch.Tensor:
        x = torch.randn(32, 64, generator=generator)
        return nn.functional.mse_loss(model(x), torch.tanh(x[:, :8] * x[:, 8:16]))

    def outer_steps() -> int:
        return int(diloco.outer_steps if quorum else diloco.stats.outer_steps)

    # As many outer steps as fit if nobody is slow; DiLoCo takes fewer, because all wait.
    fast = spec["seconds"] / (spec["every"] * STEP_SECONDS)
    last = max(2, round(fast if quorum else fast / spec["times"]))
    own = torch.Generator().manual_seed(rank)
    begin = time.monotonic()
    while outer_steps() < last:
        started = time.monotonic()
        loss(own).backward()
        inner_seconds = time.monotonic() - started
        time.sleep(max(0.0, pause - inner_seconds))
        diloco.step()
        diloco.zero_grad()
    seconds = time.monotonic() - begin
    if quorum:
        diloco.finish()
    with torch.no_grad():
        unseen = torch.Generator().manual_seed(10_000)
        held_out = sum(loss(unseen).item() for _ in range(32)) / 32
    return {"outer_steps": last, "seconds": seconds, "loss": held_out}


if __name__ == "__main__":
    rank_main(json.loads(sys.argv[1]), Path(sys.argv[2]))
