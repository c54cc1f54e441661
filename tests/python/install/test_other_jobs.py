"""An installed q7x2 changes no job that does not use it: PyTorch's groups with and without it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import interpreters
import pytest

_CODE = """
import datetime, json, sys, warnings
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

def result(call):
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def train():
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    ddp(torch.ones(1, 2)).sum().backward()

seen = {}
names, default = json.loads(sys.argv[1])
if default:
    dist.Backend.default_device_backend_map["cpu"] = default
for name in names:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        group, part = dist.group.WORLD, dist.new_group([0])
        c10d._set_pg_timeout(datetime.timedelta(seconds=9))
        facts = [
            result(call)
            for call in (
                group.name, dist.get_backend, group._has_hooks, part.name,
                group._get_sequence_number_for_group, lambda: group._device_types,
                lambda: dist.all_reduce(torch.ones(2)),
                lambda: c10d._world.pg_backend_config[group],
            )
        ]
        timeout = result(
            lambda: group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        )
        dist.destroy_process_group()
    seen[str(name)] = [*facts, timeout, [str(w.message) for w in caught]]
for name in names:  # last: it imports modules of torch that register a backend for tests
    dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
    seen[str(name)].append(result(train))
    dist.destroy_process_group()
print(json.dumps(seen))
"""


def made(program: str, names: list[str | None], default: str = "", **env: str) -> tuple[Any, str]:
    """What groups of these names say of themselves, and what was written to stderr."""
    command = [program, "-c", _CODE, json.dumps([names, default])]
    ended = subprocess.run(
        command, env=os.environ | env, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    warned = re.findall("Warning: .*", ended.stderr)  # without its time
    return json.loads(ended.stdout), "\n".join(warned)


def test_other_groups_are_what_they_are_without_q7x2() -> None:
    # A copy has imported modules of torch that register a backend for tests.
    new = sys.executable
    names: list[str | None] = [None, "gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"]
    with_it, warned = made(new, names)
    without, warned_too = made(new, names, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert with_it == without
    assert with_it["cpu:gloo"][0] == "gloo"
    assert warned == warned_too


@pytest.mark.parametrize(
    ("names", "default"), [(["q7x2", "cpu:q7x2", "cpu:q7x2,cuda:q7x2"], ""), ([None], "q7x2")]
)
def test_q7x2_is_the_default_backend_of_its_groups(names: list[str | None], default: str) -> None:
    seen, warned = made(interpreters.python(), names, default)
    assert len(seen) == len(names)
    for name, facts in seen.items():
        assert facts[0] == "custom", name  # as torch calls all installed backends
        assert facts[3] == "custom", name
        # The seconds of _set_pg_timeout, no warning, and a DDP has trained.
        assert facts[8:] == ["9.0", [], "None"], name
    assert "No backend of type" not in warned
