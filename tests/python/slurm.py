"""A SLURM cluster whose nodes are the virtual hosts of a lab, for tests of job scripts."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping

from tests.lab import Lab, Topology, unavailable

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo")
_START_S = 60

_SETTINGS = """
ClusterName=lab
SlurmctldHost=h0
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool-%h
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%h.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
MpiDefault=none
SchedulerParameters=sched_interval=1
NodeName=h[0-{last}] CPUs={cpus} State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES State=UP
"""


def missing() -> str | None:
    """Why a cluster cannot be started on this machine, or None."""
    if problem := unavailable():
        return problem
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install slurm-wlm munge"
    return None


class Slurm:
    """A running cluster. Make it by ``cluster``."""

    def __init__(self, lab: Lab, folder: pathlib.Path) -> None:
        self._lab = lab
        self._folder = folder
        self._environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def batch(self, *arguments: str, env: Mapping[str, str], timeout: float) -> str:
        """Submit a script on the first host, wait for its end, and return what the job printed.

        Raises:
            AssertionError: The job ended with another status than 0.
        """
        output = self._folder / "job.out"
        submit = ("sbatch", "--wait", "--output", str(output))
        done = self._on(0, *submit, *arguments, env=env, timeout=timeout)
        printed = output.read_text() if output.exists() else ""
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{printed}\n{self._logs()}"
        return printed

    def start(self, daemons: contextlib.ExitStack) -> None:
        """Start the daemons and wait until all nodes take jobs."""
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = ("socket", "key-file", "pid-file", "log-file", "seed-file")
        options = [f"--{name}={self._folder}/munge.{name.removesuffix('-file')}" for name in files]
        hosts = self._lab.topology.hosts
        settings = _SETTINGS.format(folder=self._folder, last=hosts - 1, cpus=os.cpu_count())
        (self._folder / "slurm.conf").write_text(settings)
        # The virtual hosts have no cgroups; version 1 is not looked for unless it is used.
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        munged = ["setpriv", "--pdeathsig", "KILL", "--", "munged", "--foreground", "--force"]
        self._daemon(daemons, "munged", [*munged, *options])
        self._daemon(daemons, "slurmctld", [*self._lab.enter(0), "slurmctld", "-D"])
        for host in range(hosts):
            self._daemon(daemons, f"slurmd-h{host}", [*self._lab.enter(host), "slurmd", "-D"])
        give_up = time.monotonic() + _START_S
        while self._on(0, "sinfo", "-h", "-o", "%T %D").stdout.strip() != f"idle {hosts}":
            if time.monotonic() > give_up:
                raise RuntimeError(f"the nodes are not idle after {_START_S} s\n{self._logs()}")
            time.sleep(0.1)

    def _daemon(self, daemons: contextlib.ExitStack, name: str, command: list[str]) -> None:
        with open(self._folder / f"{name}.out", "w") as output:
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        daemons.callback(process.wait)
        daemons.callback(process.terminate)

    def _on(
        self, host: int, *command: str, env: Mapping[str, str] | None = None, timeout: float = 30
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._lab.enter(host), *command],
            env=self._environment | (env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def _logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-2000:]}" for path in self._folder.glob("*.out")
        )


@contextlib.contextmanager
def cluster(hosts: int) -> Iterator[Slurm]:
    """A cluster of that many virtual hosts, ``h0`` to ``h<hosts - 1>``, with one partition."""
    with (
        tempfile.TemporaryDirectory(prefix="q7x2-slurm-") as folder,  # a socket's path is short
        Lab(Topology(hosts=hosts)) as lab,
        contextlib.ExitStack() as daemons,
    ):
        slurm = Slurm(lab, pathlib.Path(folder))
        slurm.start(daemons)
        yield slurm
