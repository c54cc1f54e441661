"""``q7x2 info``: its report, its JSON, its advice on what is missing. ``q7x2 --version``."""

from __future__ import annotations

import copy
import ctypes.util
import json
import os
import subprocess
from typing import Any

import interpreters
import pytest
import q7x2
import torch
from q7x2 import cli
from q7x2.cli import info


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    return info.collect()


@pytest.fixture
def gpu_host(facts: dict[str, Any]) -> dict[str, Any]:
    """A host with everything: RDMA, a GPU, CUDA in torch and in UCX."""
    host = copy.deepcopy(facts)
    host["torch"]["cuda"] = "13.0"
    host["ucx"]["origin"] = "system"
    host["ucx"]["resources"] = ["tcp/eth0", "posix/memory", "rc_mlx5/mlx5_0:1", "cuda_copy/cuda"]
    host["host"]["rdma_devices"] = [{"name": "mlx5_0", "pci_bus_id": "", "numa_node": 0}]
    host["host"]["gpus"] = [{"name": "H100", "pci_bus_id": "0000:01:00.0", "numa_node": 0}]
    host["cuda"] = {
        "built": True,
        "driver": "13.0",
        "problem": "",
        "devices": [
            {
                "name": "H100",
                "pci_bus_id": "0000:01:00.0",
                "compute_capability": "9.0",
                "memory_bytes": 80 << 30,
            }
        ],
    }
    return host


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [interpreters.python(), "-m", "q7x2", *arguments],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_json_has_every_section() -> None:
    done = run("info", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["q7x2"] == q7x2.__version__ == facts["build"]["version"]
    assert facts["torch"] == {"version": torch.__version__, "cuda": torch.version.cuda}
    assert facts["build"]["torch_version"].split(".")[:2] == torch.__version__.split(".")[:2]
    assert facts["ucx"]["origin"] == "wheel"
    assert any(resource.startswith("tcp/") for resource in facts["ucx"]["resources"])
    assert facts["host"]["cores"] >= 1
    assert set(facts["cuda"]) == {"built", "driver", "problem", "devices"}


def test_the_report_names_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    report = capsys.readouterr().out
    for text in (q7x2.__version__, torch.__version__, "UCX", "tcp", "hwloc", "CUDA", "lo"):
        assert text in report


@pytest.mark.skipif(ctypes.util.find_library("ucp") is None, reason="no UCX in the system")
def test_it_reports_the_systems_ucx() -> None:
    done = run("info", "--json", Q7X2_UCX="system")
    assert done.returncode == 0, done.stderr
    ucx = json.loads(done.stdout)["ucx"]
    assert ucx["origin"] == "system"
    assert "site-packages" not in ucx["library"]
    assert any(resource.startswith("tcp/") for resource in ucx["resources"])


def test_an_unusable_ucx_is_reported_and_is_a_failure() -> None:
    done = run("info", Q7X2_UCX="/nonexistent")
    assert done.returncode == 1
    assert "q7x2 cannot be used" in done.stdout
    assert "Traceback" not in done.stderr


def test_ucx_settings_of_the_user_show() -> None:
    done = run("info", "--json", UCX_TLS="tcp,self")
    facts = json.loads(done.stdout)
    transports = {resource.partition("/")[0] for resource in facts["ucx"]["resources"]}
    assert transports == {"tcp", "self"}
    assert any(sentence.startswith("Shared memory:") for sentence in facts["missing"])


def test_nothing_is_missing_on_a_complete_host(gpu_host: dict[str, Any]) -> None:
    assert info.missing(gpu_host) == []


def test_an_adapter_and_the_wheel_points_to_another_ucx(gpu_host: dict[str, Any]) -> None:
    gpu_host["ucx"] |= {"origin": "wheel", "resources": ["tcp/eth0", "posix/memory", "cuda_ipc/0"]}
    (sentence,) = info.missing(gpu_host)
    assert "mlx5_0" in sentence
    assert "Q7X2_UCX=system" in sentence


def test_an_adapter_that_the_systems_ucx_does_not_use(gpu_host: dict[str, Any]) -> None:
    gpu_host["ucx"]["resources"].remove("rc_mlx5/mlx5_0:1")
    (sentence,) = info.missing(gpu_host)
    assert "UCX_NET_DEVICES" in sentence


def test_no_adapter_is_said(gpu_host: dict[str, Any]) -> None:
    gpu_host["host"]["rdma_devices"] = []
    gpu_host["ucx"]["resources"].remove("rc_mlx5/mlx5_0:1")
    (sentence,) = info.missing(gpu_host)
    assert "no RDMA adapter" in sentence


def test_a_gpu_without_a_driver(gpu_host: dict[str, Any]) -> None:
    gpu_host["cuda"] |= {"driver": None, "devices": [], "problem": "no CUDA driver"}
    (sentence,) = info.missing(gpu_host)
    assert "Install the NVIDIA driver for H100" in sentence


def test_a_build_without_cuda(gpu_host: dict[str, Any]) -> None:
    gpu_host["cuda"] = {"built": False, "driver": None, "problem": "", "devices": []}
    (sentence,) = info.missing(gpu_host)
    assert "Q7X2_CUDA=ON" in sentence


def test_torch_without_cuda(gpu_host: dict[str, Any]) -> None:
    gpu_host["torch"]["cuda"] = None
    (sentence,) = info.missing(gpu_host)
    assert "build without CUDA" in sentence


def test_ucx_without_cuda(gpu_host: dict[str, Any]) -> None:
    gpu_host["ucx"]["resources"].remove("cuda_copy/cuda")
    (sentence,) = info.missing(gpu_host)
    assert "staged through the host" in sentence


# ---- q7x2 --version ------------------------------------------------------------------------------


def test_the_versions_of_what_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    facts = info.collect()
    assert capsys.readouterr().out.splitlines() == [
        f"q7x2 {q7x2.__version__}",
        f"torch {torch.__version__}",
        f"UCX {facts['ucx']['version']} ({facts['ucx']['origin']}, {facts['ucx']['library']})",
    ]


def test_the_version_of_a_ucx_that_cannot_be_used() -> None:
    done = run("--version", Q7X2_UCX="/nonexistent")
    assert done.returncode == 1
    ours, torchs, ucx = done.stdout.splitlines()
    assert ours == f"q7x2 {q7x2.__version__}"
    assert torchs == f"torch {torch.__version__}"
    assert ucx.startswith("UCX cannot be used: Q7X2_UCX=/nonexistent: expected")
    assert done.stderr == ""
