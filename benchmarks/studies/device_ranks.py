"""A rank of the part ``overlap`` of device.py: see there."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import q7x2
import torch
import torch.distributed as dist

WARM_UPS = 3


def main(spec: dict[str, Any]) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python"))
    import stand_in

    torch.set_num_threads(1)
    q7x2.register_accelerator(stand_in.NAME, stand_in.load().stream_calls())
    dist.init_process_group("q7x2")
    stand_in.load().set_copy_rate(spec["copy_rate"])
    tensors = {
        kind: torch.zeros(spec["bytes"] // 4, device=device)
        for kind, device in (("device", stand_in.NAME), ("cpu", "cpu"))
    }
    pairs = [
        {kind: _seconds(tensor) for kind, tensor in tensors.items()}
        for _ in range(WARM_UPS + spec["pairs"])
    ]
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        Path(spec["samples"]).write_text(json.dumps(pairs[WARM_UPS:]))


def _seconds(tensor: torch.Tensor) -> float:
    torch.accelerator.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(tensor)
    torch.accelerator.synchronize()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
