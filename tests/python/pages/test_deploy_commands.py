"""The commands of docs/deploy.md, on one host or on virtual ones; only names and numbers differ."""

from __future__ import annotations

import base64
import json
import pathlib
import re
import shutil
from typing import Any

import harness
import interpreters
import pytest
from page_commands import DEADLINE, replaced, runs, shell

from tests import lab as lab_package
from tests.lab import Lab, Topology
from tests.lab.processes import RanksFailed

DEPLOY = harness.ROOT / "examples" / "deploy"
CHECK = str(DEPLOY / "check.py")

needs_lab = pytest.mark.skipif(
    lab_package.unavailable() is not None, reason=str(lab_package.unavailable())
)
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")

pytestmark = [
    pytest.mark.timeout(DEADLINE + 60),
    pytest.mark.beyond("gloo", "the commands of the page are about q7x2"),
]


def on_hosts(lab: Lab, script: str, ranks_per_host: int = 1) -> str:
    """What a shell on each virtual host prints."""
    command = ["bash", "-euc", script]
    environment = interpreters.environment() | {"OMP_NUM_THREADS": "1"}
    done = lab.run(command, ranks_per_host=ranks_per_host, env=environment, timeout_s=DEADLINE)
    return "".join(rank.output for rank in done.ranks)


# ---- two machines --------------------------------------------------------------------------------


@pytest.mark.nightly("by_hand.sh of test_deploy.py has the same command")
@needs_lab
@runs("docs/deploy.md", "HEAD=node-a", "torchrun --nnodes 2")
def test_torchrun_on_two_machines(printed: str) -> None:
    script = replaced(printed, {"node-a": "h0", "train.py": CHECK})
    with Lab(Topology(hosts=2)) as lab:
        output = on_hosts(lab, script)
    assert "all_reduce over 8 ranks: correct" in output
    assert "rank 0 of 8, on 2 hosts" in output


WITH_GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("q7x2")
tensor = torch.ones(4)
dist.all_reduce(tensor, group=dist.new_group(backend="gloo"))
print("gloo's sum is", tensor[0].item(), flush=True)
dist.destroy_process_group()
"""


@needs_lab
@runs(
    "docs/deploy.md",
    "export UCX_NET_DEVICES=eth1",
    "export UCX_NET_DEVICES=mlx",
    "export GLOO_SOCKET",
)
def test_interfaces(printed: str, tmp_path: pathlib.Path) -> None:
    with_gloo = tmp_path / "with_gloo.py"
    with_gloo.write_text(WITH_GLOO)
    one, several, gloo = replaced(printed, {"eth1": "eth0"}).splitlines()
    with Lab(Topology(hosts=2)) as lab:
        for line in (one, several):  # without an adapter, the second one means the same
            assert "all_reduce over 2 ranks: correct" in on_hosts(lab, f"{line}; python {CHECK}")
        script = f"unset GLOO_SOCKET_IFNAME; {gloo}; python {with_gloo}"
        assert on_hosts(lab, script).count("gloo's sum is 2.0") == 2


@needs_lab
@runs("docs/deploy.md", "UCX_TLS=tcp", "UCX_TLS=^cma", "UCX_TLS=rc")
def test_transports(printed: str) -> None:
    tcp, no_cma, rdma = replaced(printed, {"torchrun ...": f"python {CHECK}"}).splitlines()
    with Lab(Topology(hosts=2)) as lab:
        output = on_hosts(lab, tcp, ranks_per_host=2)
        assert "all_reduce over 4 ranks: correct" in output
        assert "UCX may use tcp\n" in output
        output = on_hosts(lab, no_cma, ranks_per_host=2)
        assert "all_reduce over 4 ranks: correct" in output
        assert "cma" not in output
        if pathlib.Path("/dev/infiniband").exists():
            return
        with pytest.raises(RanksFailed) as failed:
            on_hosts(lab, rdma)
        assert "UCX_TLS=rc,sysv,self" in "".join(rank.output for rank in failed.value.results)


# ---- one machine ---------------------------------------------------------------------------------


@runs("docs/deploy.md", "export Q7X2_UCX=system", "export Q7X2_UCX=/opt/ucx/lib", "q7x2 info")
def test_the_ucx_of_a_cluster(printed: str, tmp_path: pathlib.Path) -> None:
    libraries = sorted(pathlib.Path("/usr/lib").glob("*/libucp.so.0"))
    if not libraries:
        pytest.skip("needs the package libucx0")
    folder = str(libraries[0].parent)
    system, path, info = replaced(printed, {"/opt/ucx/lib": folder}).splitlines()
    for line in (system, path):
        output = shell(f"{line}\n{info}", tmp_path, COLUMNS="200")
        (library,) = re.findall(r"library +(\S+)", output)
        assert pathlib.Path(library).resolve() == libraries[0].resolve()


NUMACTL = """#!/bin/sh
echo "rank $LOCAL_RANK: $*" >> numactl.txt
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


@runs("docs/deploy.md", "torchrun --nproc-per-node=4 --no-python")
def test_each_rank_is_bound_to_a_numa_node(printed: str, tmp_path: pathlib.Path) -> None:
    """A program that records its arguments stands for numactl: few machines have two nodes."""
    program = tmp_path / "numactl"
    program.write_text(NUMACTL)
    program.chmod(0o755)
    (tmp_path / "train.py").write_text(pathlib.Path(CHECK).read_text())
    script = replaced(printed, {"torchrun": "torchrun --standalone"})
    output = shell(f"PATH={tmp_path}:$PATH; {script}", tmp_path)
    assert "all_reduce over 4 ranks: correct" in output
    bound = sorted((tmp_path / "numactl.txt").read_text().splitlines())
    assert bound == [
        f"rank {rank}: --cpunodebind={node} --preferred={node} python train.py"
        for rank, node in enumerate((0, 0, 1, 1))
    ]


@runs("docs/deploy.md", "torchrun ... -m q7x2 fabric probe")
def test_a_measured_network_is_used_again(printed: str, tmp_path: pathlib.Path) -> None:
    launch = "torchrun --standalone --nproc-per-node 2"
    shell(replaced(printed, {"torchrun ...": launch}), tmp_path)
    measured = str(tmp_path / "cluster.json")
    output = shell(f"{launch} {CHECK}", tmp_path, Q7X2_FABRIC=measured)
    assert "all_reduce over 2 ranks: correct" in output


# ---- Kubernetes ----------------------------------------------------------------------------------


def kubectl(printed: str, folder: pathlib.Path) -> dict[str, Any]:
    """What the command would create in a cluster."""
    return json.loads(shell(f"{printed} --dry-run=client --output=json", folder))


@needs_kubectl
@runs("docs/deploy.md", "kubectl create secret")
def test_the_manifests_read_the_secret(printed: str, tmp_path: pathlib.Path) -> None:
    secret = kubectl(printed, tmp_path)
    (key,) = secret["data"]
    assert re.fullmatch(rb"[0-9a-f]{64}", base64.b64decode(secret["data"][key]))
    for manifest in (DEPLOY / "kubernetes").glob("*.yaml"):
        read = re.findall(r"secretKeyRef:\s+name: (\S+)\s+key: (\S+)", manifest.read_text())
        assert set(read) == {(secret["metadata"]["name"], key)}


@needs_kubectl
@runs("docs/deploy.md", "kubectl create configmap")
def test_pods_find_the_measured_network(printed: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    made = kubectl(printed, tmp_path)
    assert made["data"] == {"cluster.json": "{}"}
    page = (harness.ROOT / "docs" / "deploy.md").read_text()
    assert f"`Q7X2_FABRIC=/{made['metadata']['name']}/cluster.json`" in page
