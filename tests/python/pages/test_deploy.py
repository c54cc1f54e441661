"""The launchers of examples/deploy: run on virtual hosts, or checked against a schema."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import harness
import interpreters
import pytest
import slurm
from page_commands import DEADLINE, replaced, runs, shell

from tests import lab as lab_package
from tests.lab import Lab, Topology

DEPLOY = harness.ROOT / "examples" / "deploy"
CHECK = str(DEPLOY / "check.py")
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))

needs_lab = pytest.mark.skipif(
    lab_package.unavailable() is not None, reason=str(lab_package.unavailable())
)
needs_slurm = pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing()))


def environment() -> dict[str, str]:
    """Our programs first on PATH, and none of this job's own variables."""
    return interpreters.environment() | {"OMP_NUM_THREADS": "1"}


def assert_is_whole(output: str, ranks: int) -> None:
    """``output`` is that of check.py on two hosts, with a secret."""
    assert f"all_reduce over {ranks} ranks: correct" in output, output
    assert f"rank 0 of {ranks}, on 2 hosts" in output
    assert "secret: set" in output


# ---- by hand -------------------------------------------------------------------------------------


@needs_lab
@runs("docs/deploy.md", "export Q7X2_SECRET=", "examples/deploy/by_hand.sh")
def test_two_machines_by_hand(printed: str) -> None:
    secret, by_hand = replaced(printed, {"node-a 2 4": "h0 2 1"}).splitlines()
    text = shell(f"{secret}\necho $Q7X2_SECRET", harness.ROOT).strip()
    with Lab(Topology(hosts=2)) as lab:
        done = lab.run(
            ["bash", "-ec", f"cd {harness.ROOT}; {by_hand}"],
            env=environment() | {"Q7X2_SECRET": text, "JOB_ID": "test"},
            timeout_s=DEADLINE,
        )
    assert_is_whole("".join(rank.output for rank in done.ranks), ranks=2)


# The first host looks its own name up as Debian's installer has it.
LOOPBACK_NAME = r"""
if [ "$(hostname)" = h0 ]; then
  hosts=$(mktemp) && sed 's/^[0-9.]*\(.*\bh0\b\)/127.0.1.1\1/' /etc/hosts > "$hosts"
  mount --bind "$hosts" /etc/hosts && rm "$hosts"
  [ "$(getent ahostsv4 h0 | head -n 1 | cut -d ' ' -f 1)" = 127.0.1.1 ] || exit 1
fi
exec "$@"
"""


@pytest.mark.nightly("the same launch as the one above")
@needs_lab
def test_a_head_that_finds_itself_at_127_0_1_1_is_given_by_name() -> None:
    by_hand = [str(DEPLOY / "by_hand.sh"), "h0", "2", "1", CHECK]
    with Lab(Topology(hosts=2)) as lab:
        done = lab.run(
            ["unshare", "--mount", "sh", "-c", LOOPBACK_NAME, "sh", *by_hand],
            env=environment() | {"Q7X2_SECRET": "the secret of this test", "JOB_ID": "test"},
            timeout_s=DEADLINE,
        )
    assert_is_whole("".join(rank.output for rank in done.ranks), ranks=2)


def test_by_hand_says_how_it_is_called() -> None:
    done = subprocess.run(
        [DEPLOY / "by_hand.sh", "h0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "by_hand.sh HEAD_HOST NODES RANKS_PER_NODE SCRIPT" in done.stderr


# ---- SLURM ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Slurm]:
    with slurm.cluster(hosts=2) as running:
        yield running


def submit(cluster: slurm.Slurm, printed: str) -> str:
    """What a job prints that a command of the page submits, on two nodes with check.py."""
    words = shlex.split(replaced(printed, {"--nodes 4": "--nodes 2", "train.py": CHECK}))
    assert words[0] == "sbatch"
    words = [str(harness.ROOT / each) if each.endswith(".sbatch") else each for each in words]
    return cluster.batch(*words[1:], env=environment(), timeout=DEADLINE)


@needs_slurm
@runs("docs/deploy.md", "sbatch --nodes 4 examples/deploy/torchrun.sbatch")
def test_slurm_starts_torchrun(cluster: slurm.Slurm, printed: str) -> None:
    assert_is_whole(submit(cluster, printed), ranks=4)


@needs_slurm
@runs("docs/deploy.md", "sbatch --nodes 4 --ntasks-per-node 8")
def test_slurm_starts_the_ranks(cluster: slurm.Slurm, printed: str) -> None:
    fewer = replaced(printed, {"--ntasks-per-node 8": "--ntasks-per-node 2"})
    assert_is_whole(submit(cluster, fewer), ranks=4)


STAND_INS = {
    # More than a pipe holds: the scripts read the first name, and must not end scontrol by that.
    "scontrol": "seq -f node-%.0f 1 20000",
    "srun": 'echo "threads: $OMP_NUM_THREADS"',
    "torchrun": 'echo "threads: $OMP_NUM_THREADS"',
    "nproc": "echo 16",
}


def threads(tmp_path: pathlib.Path, command: list[str], **variables: str) -> int:
    """What a launcher sets OMP_NUM_THREADS to, on a machine of 16 processors.

    Programs that print the variable stand in for SLURM's and torchrun.
    """
    for name, text in STAND_INS.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    slurms = {"SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}
    slurms["SLURM_CPUS_ON_NODE"] = "16"
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, env=path | slurms | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"^threads: (\d+)$", done.stdout, re.M)
    return int(found)


@pytest.mark.parametrize(("ranks", "expected"), [(2, 8), (4, 4), (5, 3), (16, 1), (32, 1)])
@pytest.mark.parametrize("script", ["by_hand.sh", "torchrun.sbatch", "srun.sbatch"])
def test_launchers_divide_the_processors_among_the_ranks(
    tmp_path: pathlib.Path, script: str, ranks: int, expected: int
) -> None:
    command = ["bash", str(DEPLOY / script)]
    command += ["node-a", "2", str(ranks), CHECK] if script == "by_hand.sh" else [CHECK]
    variables = {"RANKS_PER_NODE": str(ranks), "SLURM_NTASKS": str(2 * ranks)}
    assert threads(tmp_path, command, **variables) == expected
    assert threads(tmp_path, command, **variables, OMP_NUM_THREADS="7") == 7


@needs_slurm
def test_slurm_reports_a_rank_that_fails(cluster: slurm.Slurm, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(3)\n")
    with pytest.raises(AssertionError, match="Exited with exit code 3"):
        cluster.batch(str(DEPLOY / "srun.sbatch"), str(script), env=environment(), timeout=DEADLINE)


# ---- Kubernetes ----------------------------------------------------------------------------------


def documents(manifest: pathlib.Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    return [each for each in yaml.safe_load_all(manifest.read_text()) if each is not None]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_manifests_fit_the_schemas_of_kubernetes(manifest: pathlib.Path) -> None:
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate"
    )
    version = kubernetes_validate.latest_version()
    for document in documents(manifest):
        if document["kind"] != "PyTorchJob":
            kubernetes_validate.validate(document, version, strict=True)
            continue
        for replicas in document["spec"]["pytorchReplicaSpecs"].values():
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
            kubernetes_validate.validate(pod | replicas["template"], version, strict=True)


def containers(value: Any) -> Iterator[dict[str, Any]]:
    """All containers of a document."""
    if isinstance(value, dict):
        yield from value.get("containers", [])
    nested = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in nested:
        yield from containers(each)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_manifests_divide_the_processors_among_the_ranks(manifest: pathlib.Path) -> None:
    (ranks,) = re.findall(r'(?:--nproc-per-node=|nprocPerNode: ")(\d+)', manifest.read_text())
    found = [each for document in documents(manifest) for each in containers(document)]
    assert found
    for container in found:
        values = {each["name"]: each.get("value") for each in container["env"]}
        processors = int(container["resources"]["requests"]["cpu"])
        assert values["OMP_NUM_THREADS"] == str(processors // int(ranks))


def fits_model(value: Any, kind: str, models: Any, where: str) -> None:
    """Compare ``value`` with a type of an OpenAPI client: a model's name, list[..] or dict(..)."""
    if inner := re.fullmatch(r"list\[(.+)\]|dict\(str, (.+)\)", kind):
        items = enumerate(value) if inner[1] else value.items()
        for key, item in items:
            fits_model(item, inner[1] or inner[2], models, f"{where}.{key}")
    elif hasattr(models, kind):
        model = getattr(models, kind)
        names = {json: name for name, json in model.attribute_map.items()}
        assert set(value) <= set(names), f"{where}: {kind} has no {set(value) - set(names)}"
        model(**{names[key]: value[key] for key in value})  # raises if something is missing
        for key in value:
            fits_model(value[key], model.openapi_types[names[key]], models, f"{where}.{key}")
    elif python := {"str": str, "int": int, "bool": bool}.get(kind):
        assert isinstance(value, python), f"{where}: expected {kind}, got {value!r}"


def pytorchjob() -> tuple[Any, dict[str, Any]]:
    training = pytest.importorskip(
        "kubeflow.training.models", reason="pip install kubeflow-training"
    )
    (document,) = documents(DEPLOY / "kubernetes" / "pytorchjob.yaml")
    return training, document


def test_the_pytorchjob_fits_kubeflows_model() -> None:
    models, document = pytorchjob()
    fits_model(document, "KubeflowOrgV1PyTorchJob", models, "job")


def test_a_field_that_kubeflow_does_not_know_is_found() -> None:
    models, document = pytorchjob()
    document["spec"]["runPolicy"]["cleanPods"] = "All"
    with pytest.raises(AssertionError, match=r"RunPolicy has no \{'cleanPods'\}"):
        fits_model(document, "KubeflowOrgV1PyTorchJob", models, "job")


# ---- Docker --------------------------------------------------------------------------------------


def test_the_dockerfile_installs_by_the_script_that_dev_wheel_runs(
    repository: pathlib.Path,
) -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    (step,) = re.findall(r"^RUN (.+)$", dockerfile, re.M)
    assert step.startswith("sh /tmp/install.sh /tmp/wheels")
    for source in re.findall(r"^COPY (\S+)", dockerfile, re.M):
        assert source == "dist/" or (repository / source).is_file()
    assert "examples/deploy/install.sh" in (repository / "dev").read_text()
