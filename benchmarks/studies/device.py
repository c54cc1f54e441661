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
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import q7x2
import torch
import torch.distributed as dist

from benchmarks.harness import ROOT, ranks
from benchmarks.harness.arguments import option
from tests.lab import Topology

LATE = 0.020
HOST_BYTES = 1 << 20
HOST_GOAL = 1e-3
OVERLAP_BYTES = 64 << 20
OVERLAP_GOAL = 1.1
OVERLAP_WARM_UPS = 3
LINK = "1gbit"
COPY_RATE = 2e9  # bytes per second, per direction
BUS_BYTES = 1 << 20
BUS_RANKS = (2, 4)
BUS_CODECS = ("none", "fp16", "int8", "int4", "int2", "onebit")
BUS_GOAL = 0.3  # of int4

OPTIONS = {
    "trials": option(100, "of the part host"),
    "pairs": option(9, "of the part overlap"),
}


def measure_host(args: argparse.Namespace) -> dict[str, Any]:
    trials = ranks.run(__name__, {"part": "host", "trials": args.trials}, 2)
    return {"bytes": HOST_BYTES, "late": LATE, "trials": trials}


def measure_overlap(args: argparse.Namespace) -> dict[str, Any]:
    spec, topology = {"part": "overlap", "pairs": args.pairs}, Topology(hosts=2, rate=LINK)
    pairs = ranks.run(__name__, spec, topology=topology, timeout_s=600)
    ratio = statistics.median(pair["device"] / pair["cpu"] for pair in pairs)
    about = {"bytes": OVERLAP_BYTES, "link": LINK, "copy_rate": COPY_RATE}
    return {**about, "ratio": ratio, "pairs": pairs}


def measure_bus(_: argparse.Namespace) -> dict[str, Any]:
    rows = [row for n in BUS_RANKS for row in ranks.run(__name__, {"part": "bus"}, n)]
    return {"bytes": BUS_BYTES, "rows": rows}


PARTS = {"host": measure_host, "overlap": measure_overlap, "bus": measure_bus}


def lines(body: Mapping[str, Any]) -> Iterator[str]:
    if host := body.get("host"):
        yield (
            f"all_reduce + wait() of {host['bytes']} bytes: the host is kept"
            f" {_ms([trial['host'] for trial in host['trials']])}, the result is there after"
            f" {_ms([trial['stream'] for trial in host['trials']])} (goal: {HOST_GOAL * 1e3:g} ms"
            " of the host)"
        )
    if overlap := body.get("overlap"):
        pairs = overlap["pairs"]
        yield (
            f"all_reduce of {overlap['bytes']} bytes, 2 ranks, {overlap['link']}: device tensors"
            f" {_ms([pair['device'] for pair in pairs])}, CPU tensors"
            f" {_ms([pair['cpu'] for pair in pairs])}, {overlap['ratio']:.3f} times as long (goal:"
            f" {OVERLAP_GOAL:g}; one after the other: {_in_sequence(pairs):.3f})"
        )
    if bus := body.get("bus"):
        yield (
            f"bytes over the bus per all_reduce of {bus['bytes']} bytes, by codec (goal of int4:"
            f" {BUS_GOAL:g} times as many):"
        )
        for row in bus["rows"]:
            yield (
                f"{row['ranks']} ranks, {row['codec']}: {row['to_host']} bytes to the host,"
                f" {row['to_device']} to the device, {row['ratio']:.3f} times as many as without"
            )


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.3f} ms (at most {max(seconds) * 1e3:.3f} ms)"


def _in_sequence(pairs: list[dict[str, float]]) -> float:
    """How many times as long it would take if the copies came before and after the call."""
    link = statistics.median(pair["cpu"] for pair in pairs)
    return (link + 2 * OVERLAP_BYTES / COPY_RATE) / link


def rank_main(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what a rank has measured or counted for a part."""
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    import stand_in

    module = stand_in.load()
    # With its own kernels for codecs only where they are counted.
    kernels = [] if spec["part"] == "overlap" else [module.codec_kernels()]
    q7x2.groups.register_accelerator(stand_in.NAME, module.stream_calls(), *kernels)
    dist.init_process_group("q7x2")
    if spec["part"] == "host":
        return _host(spec["trials"])
    return _overlap(module, spec["pairs"]) if spec["part"] == "overlap" else _bus(module)


def _host(trials: int) -> list[dict[str, Any]]:
    """Seconds of rank 0: of its host, and until its stream has the result."""
    tensor = torch.ones(HOST_BYTES // 4, device="fake")
    measured = []
    for _ in range(trials + 5):
        torch.accelerator.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        if dist.get_rank() == 1:
            time.sleep(LATE)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        host = time.perf_counter() - begin
        torch.accelerator.synchronize()
        measured.append({"host": host, "stream": time.perf_counter() - begin})
    return measured[5:]


def _overlap(module: Any, pairs: int) -> list[dict[str, Any]]:
    """Seconds with tensors on the device and on the CPU, in turns."""
    module.set_copy_rate(COPY_RATE)
    tensors = {
        kind: torch.zeros(OVERLAP_BYTES // 4, device=device)
        for kind, device in (("device", "fake"), ("cpu", "cpu"))
    }
    measured = [
        {kind: _seconds(tensor) for kind, tensor in tensors.items()}
        for _ in range(OVERLAP_WARM_UPS + pairs)
    ]
    return measured[OVERLAP_WARM_UPS:]


def _seconds(tensor: torch.Tensor) -> float:
    torch.accelerator.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(tensor)
    torch.accelerator.synchronize()
    return time.perf_counter() - begin


def _bus(module: Any) -> list[dict[str, Any]]:
    """Bytes of this rank, by codec. The first call of a kind brings the Plan."""
    counted: list[dict[str, Any]] = []
    for codec in BUS_CODECS:
        tensor = torch.ones(BUS_BYTES // 4, device="fake")
        for _ in range(2):
            torch.accelerator.synchronize()
            before = module.copied_bytes()
            q7x2.all_reduce(tensor, codec=codec, edges="all")
            torch.accelerator.synchronize()
            after = module.copied_bytes()
        row = {"to_host": after[0] - before[0], "to_device": after[1] - before[1]}
        plain = counted[0] if counted else row
        ratio = sum(row.values()) / (plain["to_host"] + plain["to_device"])
        counted.append({"ranks": dist.get_world_size(), "codec": codec, **row, "ratio": ratio})
    return counted
