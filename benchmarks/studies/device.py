"""Device: what calls on device tensors cost beside the communication itself.

The ranks use tensors of the stand-in accelerator (docs/testing_devices.md). Three parts:

``host``: rank 1 comes 20 ms late, so the communication takes 20 ms at least. Rank 0 measures how
long ``all_reduce`` and ``wait()`` keep its host, and how long the stream takes to have the result.

``overlap``: two virtual hosts with a link of 1 Gbit/s reduce 64 MiB. The accelerator copies 2 GB/s
per direction. The time is compared with that of CPU tensors, which pass over the link alone (root).

``bus``: how many bytes an ``all_reduce`` of 1 MiB with each codec copies between device and host on
rank 0, by the accelerator's own count, beside an all-reduce without a codec. It measures no time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import facts, report
from benchmarks.harness.lab import Lab, Topology, unavailable
from benchmarks.harness.launch import python_path

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parents[1] / "results"
PARTS = ("host", "overlap", "bus")
LATE = 0.020
HOST_BYTES = 1 << 20
HOST_GOAL = 1e-3
OVERLAP_BYTES = 64 << 20
OVERLAP_GOAL = 1.1
LINK = "1gbit"
COPY_RATE = 2e9  # bytes per second, per direction
BUS_BYTES = 1 << 20
BUS_RANKS = (2, 4)
BUS_CODECS = ("none", "fp16", "int8", "int4", "int2", "onebit")
BUS_GOAL = 0.3  # of int4


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks device", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--trials", type=int, default=100, help="of the part host")
    parser.add_argument("--pairs", type=int, default=9, help="of the part overlap")
    parser.add_argument("--out", type=Path, default=RESULTS / "device.json")
    args = parser.parse_args(argv)
    if "overlap" in args.parts and (problem := unavailable()):
        raise ValueError(f"the part overlap needs virtual hosts: {problem}")

    machine = facts.collect()
    console = report.console()
    report.print_facts(console, machine)
    results = {}
    if "host" in args.parts:
        trials = _on_ranks(_host_rank, 2, args.trials)
        results["host"] = {"bytes": HOST_BYTES, "late": LATE, "trials": trials}
        console.print(
            f"all_reduce + wait() of {HOST_BYTES} bytes: the host is kept"
            f" {_ms([trial['host'] for trial in trials])}, the result is there after"
            f" {_ms([trial['stream'] for trial in trials])} (goal: {HOST_GOAL * 1e3:g} ms of the"
            " host)",
            markup=False,
        )
    if "overlap" in args.parts:
        pairs = _overlap(args.pairs)
        ratio = statistics.median(pair["device"] / pair["cpu"] for pair in pairs)
        results["overlap"] = {
            "bytes": OVERLAP_BYTES,
            "link": LINK,
            "copy_rate": COPY_RATE,
            "ratio": ratio,
            "pairs": pairs,
        }
        console.print(
            f"all_reduce of {OVERLAP_BYTES} bytes, 2 ranks, {LINK}: device tensors"
            f" {_ms([pair['device'] for pair in pairs])}, CPU tensors"
            f" {_ms([pair['cpu'] for pair in pairs])}, {ratio:.3f} times as long (goal:"
            f" {OVERLAP_GOAL:g}; one after the other: {_in_sequence(pairs):.3f})",
            markup=False,
        )
    if "bus" in args.parts:
        rows = [row for ranks in BUS_RANKS for row in _on_ranks(_count_rank, ranks, BUS_BYTES)]
        results["bus"] = {"bytes": BUS_BYTES, "rows": rows}
        for row in rows:
            console.print(
                f"all_reduce of {BUS_BYTES} bytes, {row['ranks']} ranks, codec {row['codec']}:"
                f" {row['to_host']} bytes to the host, {row['to_device']} to the device,"
                f" {row['ratio']:.3f} times as many as without (goal of int4: {BUS_GOAL:g})",
                markup=False,
            )
    report.write_json(args.out, machine, results)


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.3f} ms (at most {max(seconds) * 1e3:.3f} ms)"


def _in_sequence(pairs: list[dict[str, float]]) -> float:
    """How many times as long it would take if the copies came before and after the call."""
    link = statistics.median(pair["cpu"] for pair in pairs)
    return (link + 2 * OVERLAP_BYTES / COPY_RATE) / link


def _overlap(pairs: int) -> list[dict[str, float]]:
    """Seconds of rank 0 with tensors on the device and on the CPU, in turns."""
    with tempfile.TemporaryDirectory(prefix="q7x2-device-") as folder:
        samples = Path(folder) / "samples.json"
        spec = {
            "bytes": OVERLAP_BYTES,
            "copy_rate": COPY_RATE,
            "pairs": pairs,
            "samples": str(samples),
        }
        with Lab(Topology(hosts=2, rate=LINK)) as lab:
            lab.run(
                [sys.executable, "-m", "benchmarks.studies.device_ranks", json.dumps(spec)],
                env={"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path()},
                timeout_s=600,
            )
        measured: list[dict[str, float]] = json.loads(samples.read_text())
    return measured


def _on_ranks(body: Callable[..., None], world_size: int, argument: int) -> list[dict[str, Any]]:
    """What ``body(rank, world_size, store, argument, results)`` puts to ``results`` on rank 0."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        results: Any = context.Queue()
        ranks = [
            context.Process(
                target=body,
                args=(rank, world_size, f"file://{directory}/store", argument, results),
            )
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise ValueError("a rank failed, see above")
        measured: list[dict[str, Any]] = results.get()
    return measured


def _join(rank: int, world_size: int, store: str) -> Any:
    """Make the default group, and return the accelerator's compiled module."""
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    import q7x2
    import stand_in
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    module = stand_in.load()
    q7x2.register_accelerator(stand_in.NAME, module.stream_calls(), module.codec_kernels())
    dist.init_process_group("q7x2", init_method=store, rank=rank, world_size=world_size)
    return module


def _host_rank(rank: int, world_size: int, store: str, trials: int, results: Any) -> None:
    """Seconds of rank 0: of its host, and until its stream has the result."""
    _join(rank, world_size, store)
    import torch
    import torch.distributed as dist

    tensor = torch.ones(HOST_BYTES // 4, device="fake")
    measured = []
    for _ in range(trials + 5):
        torch.accelerator.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        if rank == 1:
            time.sleep(LATE)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        host = time.perf_counter() - begin
        torch.accelerator.synchronize()
        measured.append({"host": host, "stream": time.perf_counter() - begin})
    dist.destroy_process_group()
    if rank == 0:
        results.put(measured[5:])


def _count_rank(rank: int, world_size: int, store: str, size: int, results: Any) -> None:
    """Bytes of rank 0, by codec. The first call of a kind brings the Plan."""
    module = _join(rank, world_size, store)
    import q7x2
    import torch
    import torch.distributed as dist

    counted: list[dict[str, Any]] = []
    for codec in BUS_CODECS:
        tensor = torch.ones(size // 4, device="fake")
        for _ in range(2):
            torch.accelerator.synchronize()
            before = module.copied_bytes()
            q7x2.all_reduce(tensor, codec, edges="all")
            torch.accelerator.synchronize()
            after = module.copied_bytes()
        row = {"to_host": after[0] - before[0], "to_device": after[1] - before[1]}
        plain = counted[0] if counted else row
        ratio = sum(row.values()) / (plain["to_host"] + plain["to_device"])
        counted.append({"ranks": world_size, "codec": codec, **row, "ratio": ratio})
    dist.destroy_process_group()
    if rank == 0:
        results.put(counted)
