"""Groups that cannot be made: ranks that fail, are late, never come, or lose the store."""

from __future__ import annotations

import signal
from datetime import timedelta

import harness
import pytest
import torch.distributed as dist
from pairs import each_value
from process_state import wait_until_asleep
from values import meet

CANNOT = """
    import os, sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    rank = int(os.environ["RANK"])
    if rank == int(sys.argv[2]):
        os.environ["UCX_TLS"] = "nonsense"
        time.sleep(float(sys.argv[3]))
    else:
        time.sleep(1 - float(sys.argv[3]))
    try:
        dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=600))
    except RuntimeError as error:
        print(error)
        sys.exit(3)
"""


@pytest.mark.beyond("gloo", "the others wait for their deadline")
@pytest.mark.parametrize(("victim", "late"), each_value([0, 1], [0, 1]))
def test_a_rank_that_cannot_start_tells_the_others(backend, tmp_path, victim, late) -> None:
    args = [backend, str(victim), str(late)]
    results = harness.run_script(CANNOT, 3, tmp_path, 60, expect=3, args=args)
    for result in results:
        assert "UCX_TLS=nonsense" in result.stdout, result.describe()
        if result.rank != victim:
            said = f"rank {victim} of 3 could not make the group"
            assert said in result.stdout, result.describe()


# One of two ranks has a store, but never makes the group. Rank 0, whose store it is, leaves last.
ABSENT = """
    import os, signal, sys, torch, torch.distributed as dist
    from datetime import timedelta
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank = int(os.environ["RANK"])
    store = next(dist.rendezvous("env://"))[0]

    def leave():
        if rank == 0:
            store.wait(["rank 1 has left"], timedelta(seconds=600))
        else:
            store.set("rank 1 has left", "")
        os._exit(0)

    if rank == int(sys.argv[2]):
        store.wait(["leave"], timedelta(seconds=600))
        leave()
    print("waiting", flush=True)
    try:
        dist.init_process_group(
            sys.argv[1],
            store=store.clone(),
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=float(sys.argv[3])),
        )
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
    except RuntimeError as error:
        print("error", error, flush=True)
    store.set("leave", "")
    leave()
"""


@pytest.mark.beyond("gloo", "goes on waiting")
@pytest.mark.parametrize("absent", [0, 1])
def test_control_c_in_init(backend, tmp_path, absent) -> None:
    args = [backend, str(absent), "600"]
    with harness.script(ABSENT, 2, tmp_path, args=args) as processes:
        waits = processes[1 - absent]
        harness.wait_until(lambda: "waiting" in waits.stdout())
        wait_until_asleep(waits.pid)
        waits.signal(signal.SIGINT)
        result = waits.result(60)
        assert "KeyboardInterrupt" in result.stdout, result.describe()


LATE = """
    import os, sys, time, torch.distributed as dist
    rank = os.environ["RANK"]
    if rank == sys.argv[2]:
        time.sleep(1)
    dist.init_process_group(sys.argv[1])
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("late", [0, 1])
def test_waiting_for_a_late_rank_prints_nothing(backend, tmp_path, late) -> None:
    for result in harness.run_script(LATE, 2, tmp_path, args=[backend, str(late)]):
        assert result.stderr == "", result.describe()


@pytest.mark.beyond("gloo", "says which key of its own is missing")
@pytest.mark.parametrize("absent", [0, 1])
def test_a_missing_rank_is_named(backend, tmp_path, absent) -> None:
    results = harness.run_script(ABSENT, 2, tmp_path, 60, args=[backend, str(absent), "3"])
    text = results[1 - absent].stdout
    assert f"rank {absent} did not join within the timeout of 3000 ms" in text, text
    assert "frame #" not in text, text


# Rank 2 never starts, and rank 0 serves the store.
NEVER_STARTED = """
    import os, sys, torch, torch.distributed as dist
    from datetime import timedelta
    if os.environ["RANK"] == "2":
        os._exit(0)
    try:
        dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=5), **eval(sys.argv[2]))
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.mark.beyond("gloo", "says that 2 of 3 clients joined")
@pytest.mark.parametrize("how", ["env", "tcp"])
def test_a_rank_that_never_starts_is_named_by_all(backend, tmp_path, how) -> None:
    options = {
        "env": "{}",
        "tcp": "dict(init_method='tcp://localhost:' + os.environ['MASTER_PORT'], "
        "rank=int(os.environ['RANK']), world_size=3)",
    }
    results = harness.run_script(NEVER_STARTED, 3, tmp_path, 60, args=[backend, options[how]])
    for result in results[:2]:
        assert "DistBackendError" in result.stdout, result.describe()
        assert "rank 2 did not join within the timeout of 5000 ms" in result.stdout, (
            result.describe()
        )


OTHER_BACKEND = """
    import os, torch.distributed as dist
    from datetime import timedelta
    if os.environ["RANK"] == "1":
        os._exit(0)
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    except RuntimeError as error:
        print(error, flush=True)
"""


@pytest.mark.beyond("gloo", "q7x2 must leave it alone")
def test_the_store_of_another_backend_waits_as_before(tmp_path) -> None:
    result = harness.run_script(OTHER_BACKEND, 2, tmp_path, 60)[0]
    assert "1/2 clients joined" in result.stdout, result.describe()


@pytest.mark.beyond("gloo", "says which key of its own is missing")
@pytest.mark.ranks(2, fresh=True)
def test_ranks_that_disagree_about_the_name_of_a_group() -> None:
    """Newer versions of torch count names per rank, so ranks may make different groups next."""
    rank = dist.get_rank()
    if rank == 1:
        dist.distributed_c10d._world.group_count += 5
    expected = f"rank {1 - rank} of the job was last seen making the group '{6 - 5 * rank}'"
    meet()
    with pytest.raises(RuntimeError, match=expected):
        dist.new_group([0, 1], timeout=timedelta(seconds=5))


LOST = """
    import os, sys, torch, torch.distributed as dist
    from datetime import timedelta
    from process_state import wait_until_asleep
    rank = int(os.environ["RANK"])
    store = next(dist.rendezvous("env://"))[0]
    if rank == 0:
        wait_until_asleep(int(store.get("pid of rank 1")))
        os._exit(0)
    store.set("pid of rank 1", str(os.getpid()))
    try:
        dist.init_process_group(
            sys.argv[1], store=store, rank=1, world_size=2, timeout=timedelta(seconds=600)
        )
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(0)
"""


@pytest.mark.beyond("gloo", "shows torch's stack")
def test_a_lost_store_is_one_sentence(backend, tmp_path) -> None:
    result = harness.run_script(LOST, 2, tmp_path, 60, args=[backend])[1]
    assert "the store does not answer" in result.stdout, result.describe()
    assert len(result.stdout.splitlines()) == 1, result.describe()
