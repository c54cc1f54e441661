"""Groups that cannot be made: ranks that fail, are late, never come, or lose the store."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import harness
import pytest
import torch.distributed as dist

CANNOT = """
    import os, sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    rank = int(os.environ["RANK"])
    if rank == int(sys.argv[2]):
        os.environ["UCX_TLS"] = "nonsense"
        time.sleep(float(sys.argv[3]))
    else:
        time.sleep(1 - float(sys.argv[3]))
    start = time.monotonic()
    try:
        dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=120))
    except RuntimeError as error:
        print(time.monotonic() - start, error)
        sys.exit(3)
"""


@pytest.mark.beyond("gloo", "the others wait for their deadline")
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_cannot_start_tells_the_others(backend, tmp_path, victim, late) -> None:
    args = [backend, str(victim), str(late)]
    results = harness.run_script(CANNOT, 3, tmp_path, 60, expect=3, args=args)
    for result in results:
        seconds, error = result.stdout.split(" ", 1)
        assert float(seconds) < 15, result.describe()
        assert "UCX_TLS=nonsense" in error, result.describe()
        if result.rank != victim:
            assert f"rank {victim} of 3 could not make the group" in error, result.describe()


# The others have a store, but never make the group.
ABSENT = """
    import os, signal, sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank = int(os.environ["RANK"])
    if rank == int(sys.argv[2]):
        store = next(dist.rendezvous("env://"))[0]
        store.wait(["leave"], timedelta(seconds=60))
        os._exit(0)
    store = next(dist.rendezvous("env://"))[0]
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
        print("KeyboardInterrupt", time.monotonic(), flush=True)
    except RuntimeError as error:
        print("error", error, flush=True)
    store.set("leave", "")
    time.sleep(0.2)
"""


@pytest.mark.beyond("gloo", "goes on waiting")
@pytest.mark.parametrize("absent", [0, 1])
def test_control_c_in_init(backend, tmp_path, absent) -> None:
    args = [backend, str(absent), "50"]
    with harness.script(ABSENT, 2, tmp_path, args=args) as processes:
        waits = processes[1 - absent]
        end = time.monotonic() + 60
        while "waiting" not in waits.stdout():
            assert time.monotonic() < end, waits.stderr()
            time.sleep(0.05)
        time.sleep(1)
        at = time.monotonic()
        waits.signal(signal.SIGINT)
        result = waits.result(15)
        assert "KeyboardInterrupt " in result.stdout, result.describe()
        raised = float(result.stdout.split("KeyboardInterrupt ")[1].split()[0])
        # Usually a fifth of a second. On a busy machine torch's store may take seconds to give up a
        # wait; the group's timeout is 50.
        assert raised - at < 10, result.describe()


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
    results = harness.run_script(ABSENT, 2, tmp_path, 60, args=[backend, str(absent), "1"])
    text = results[1 - absent].stdout
    assert f"rank {absent} did not join within the timeout of 1000 ms" in text, text
    assert "frame #" not in text, text


@pytest.mark.beyond("gloo", "says which key of its own is missing")
@pytest.mark.ranks(2, fresh=True)
def test_ranks_that_disagree_about_the_name_of_a_group() -> None:
    """Newer versions of torch count names per rank, so ranks may make different groups next."""
    rank = dist.get_rank()
    if rank == 1:
        dist.distributed_c10d._world.group_count += 5
    expected = f"rank {1 - rank} of the job was last seen making the group '{6 - 5 * rank}'"
    with pytest.raises(RuntimeError, match=expected):
        dist.new_group([0, 1], timeout=timedelta(seconds=2))


LOST = """
    import os, sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    rank = int(os.environ["RANK"])
    store = next(dist.rendezvous("env://"))[0]
    if rank == 0:
        time.sleep(1)
        os._exit(0)
    try:
        dist.init_process_group(
            sys.argv[1], store=store, rank=1, world_size=2, timeout=timedelta(seconds=60)
        )
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(0)
"""


@pytest.mark.beyond("gloo", "shows torch's stack")
def test_a_lost_store_is_one_sentence(backend, tmp_path) -> None:
    result = harness.run_script(LOST, 2, tmp_path, 30, args=[backend])[1]
    assert "the store does not answer" in result.stdout, result.describe()
    assert len(result.stdout.splitlines()) == 1, result.describe()
