"""CUDA kernels need no more of a multiprocessor than the table says."""

from __future__ import annotations

import kernel_resources as resources
import pytest

NVCC = resources.nvcc_version()
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="build/dev has no CUDA sources: no nvcc found")


@needs_nvcc
def test_encoding_does_not_spill() -> None:
    found = {k: n for k, n in resources.reported().items() if k[0].startswith("encode")}
    assert found
    assert {key: needs for key, needs in found.items() if needs.spills or needs.stack} == {}


@needs_nvcc
def test_kernels_need_what_the_table_says() -> None:
    version, table = resources.committed()
    found = resources.reported()
    built = {architecture for _, architecture in found}  # a wheel has more of them
    expected = {key for key in table if key[1] in built}
    assert set(found) == expected, "write the table anew, and look at what changed"
    for key, needs in found.items():
        registers, shared, spills = table[key]
        assert needs.shared == shared, key
        if version == NVCC:  # another compiler allocates registers otherwise
            assert needs.registers <= registers, key
            assert needs.spills <= spills, key
