"""torch built with CUDA on a machine without a driver: q7x2 loads, and the errors are torch's own.

`./dev test --torch X tests/python/devices/test_cuda_torch.py` installs such a torch, see
docs/testing.md.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from q7x2.cli import info
from values import assert_bits

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available(),
    reason="needs a torch built with CUDA, and no driver",
)


@pytest.mark.ranks(2)
def test_cpu_tensors_are_reduced() -> None:
    x = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    assert_bits(x, torch.full((1000,), 3.0))


@pytest.mark.ranks(2)
def test_a_cuda_tensor_gives_the_error_of_torch() -> None:
    with pytest.raises(RuntimeError, match="no NVIDIA driver"):
        dist.all_reduce(torch.ones(4, device="cuda"))
    dist.barrier()  # the group goes on


def test_info_says_what_is_missing() -> None:
    facts = info.collect()
    assert "error" not in facts
    assert facts["cuda"]["devices"] == []
    assert any(sentence.startswith("CUDA: ") for sentence in facts["missing"]), facts["missing"]
