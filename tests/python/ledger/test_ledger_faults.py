"""``Q7X2_LEDGER`` when the disk is full, or the process can open no file."""

from __future__ import annotations

import pathlib
import sqlite3

import harness
from q7x2.ledger import reader as ledger_reader


def test_it_goes_on_when_the_disk_has_room_again(tmp_path: pathlib.Path) -> None:
    """A limit of the size of files has the effect of a full disk; one of open files is another."""
    (process,) = harness.run_script(
        """
import contextlib, glob, itertools, os, resource, sqlite3, time, warnings
import q7x2
import torch
import torch.distributed as dist

dist.init_process_group("q7x2")

@contextlib.contextmanager
def limited(which, limit):
    before = resource.getrlimit(which)
    resource.setrlimit(which, (limit, before[1]))
    yield
    resource.setrlimit(which, before)

reader = sqlite3.connect(glob.glob(os.environ["Q7X2_LEDGER"] + "/*.sqlite")[0])

def rows(table):
    return reader.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]

steps = itertools.count()

def step():
    dist.all_reduce(torch.ones(1))
    q7x2.log_step(next(steps))
    time.sleep(0.01)

while rows("step") == 0:
    step()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with limited(resource.RLIMIT_FSIZE, 1):
        while not caught:
            step()
    before = rows("step")
    while rows("step") == before:
        step()
assert len(caught) == 1 and "tried again every second" in str(caught[0].message), caught
with limited(resource.RLIMIT_NOFILE, 3):  # no file for a sample
    before = rows("step")
    while rows("step") == before:
        step()
dist.destroy_process_group()
print("steps", next(steps))
""",
        1,
        tmp_path,
        env={"Q7X2_LEDGER": str(tmp_path)},
    )
    (ledger,) = ledger_reader.read(tmp_path)
    with sqlite3.connect(ledger.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    steps = int(process.stdout.split("steps ")[1].split()[0])
    calls = [each["operation"] for each in ledger.operations() if not each["internal"]]
    assert calls == ["all_reduce"] * steps
    assert [loss for _, loss in ledger.steps()] == [float(step) for step in range(steps)]
