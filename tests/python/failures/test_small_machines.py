"""Machines with little shared memory: a group works without it, or says in a sentence why not."""

from __future__ import annotations

import itertools

import pytest
from small_machine import End, Machine, run, why_not

pytestmark = [
    pytest.mark.beyond("gloo", "has no shared memory"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

# "0" cannot be written to. UCX takes 0.8 MiB for each rank and changes its mind below 16 MiB.
SHM_SIZES = ("0", "4k", "1m", "4m", "8m", "16m", "17m", "18m", "20m", "32m", "64m")
NO_SYSV = {"shmmni": 0}
SYSV_LIMITS = (
    {},
    NO_SYSV,
    {"shmmni": 1},  # UCX's queue, and not what it receives into
    {"shmmax": 4096},
    {"shmall": 100},  # pages
    {"shmall": 200},  # one rank's
)
EVERY_SIZE = pytest.mark.nightly("more machines than the quick level")
UCX_TLS = (None, "posix", "sysv", "tcp", "shm", "self,tcp", "^posix", "posix,tcp", "nonsense")
# What UCX itself says, which helps nobody.
CRYPTIC = ("Out of memory", "Shared memory error", "No such device", "No resources are available")


def machine_with(tls: str | None, **kwargs: object) -> Machine:
    return Machine(env={} if tls is None else {"UCX_TLS": tls}, **kwargs)  # type: ignore[arg-type]


def problem(machine: Machine, ends: list[End]) -> str:
    """What is wrong with how the ranks ended; "" if nothing is."""
    wrong = []
    for rank, end in enumerate(ends):
        if end.exit not in (0, 3):
            wrong.append(f"rank {rank} ended with {end.exit}\n{end.output}")
        if any(text in end.error for text in CRYPTIC):
            wrong.append(f"rank {rank}: {end.error}")
        if end.exit == 3 and end.error_type != "DistBackendError":
            wrong.append(f"rank {rank}: {end.error_type}: {end.error}")
    if len({end.exit for end in ends}) > 1:
        wrong.append(f"the ranks ended differently: {[(end.exit, end.error) for end in ends]}")
    return "\n".join([f"== {machine}", *wrong]) if wrong else ""


def check(machines: list[Machine]) -> list[list[End]]:
    all_ends = run(machines)
    problems = list(filter(None, map(problem, machines, all_ends)))
    assert not problems, "\n".join(problems)
    return all_ends


@pytest.mark.parametrize(
    ("ranks", "sizes"),
    [
        pytest.param(2, ("0", "1m", "64m"), id="2"),
        pytest.param(8, ("18m",), id="8"),
        pytest.param(2, SHM_SIZES, marks=EVERY_SIZE, id="2, every size"),
        pytest.param(8, ("0", "16m", "18m", "32m", "64m"), marks=EVERY_SIZE, id="8, more sizes"),
    ],
)
def test_every_size_of_dev_shm_works(ranks: int, sizes: tuple[str, ...]) -> None:
    machines = [Machine(ranks=ranks, shm=size) for size in sizes]
    for machine, ends in zip(machines, check(machines), strict=True):
        assert [end.exit for end in ends] == [0] * ranks, f"{machine}: {ends}"
        if machine.shm in ("0", "4k", "1m"):
            (warning,) = ends[0].warnings
            assert "/dev/shm" in warning
            assert "--shm-size=1g" in warning
        assert not any(end.warnings for end in ends[1:]), "one rank of a host warns, once"
        if machine.shm == "64m":
            assert not ends[0].warnings


def test_the_warning_says_how_much_there_is() -> None:
    (ends,) = check([Machine(ranks=8, shm="4m")])
    assert ends[0].warnings == [
        "q7x2: UCX's transport posix is not used: /dev/shm has 4 MiB free, and UCX needs 7 MiB "
        "for the 8 ranks of this host; start the container with --shm-size=1g, or enlarge /dev/shm"
    ]


@pytest.mark.parametrize(
    ("shm", "stopped"),
    [
        ("8m", 3),
        pytest.param("8m", 0, marks=EVERY_SIZE),
        pytest.param("64m", 0, marks=EVERY_SIZE),
        pytest.param("64m", 3, marks=EVERY_SIZE),
    ],
)
def test_messages_that_pile_up_need_no_more_of_it(shm: str, stopped: int) -> None:
    """UCX leaves in it what arrives before it is asked for, and loses messages when it is full."""
    (ends,) = check([machine_with("posix", ranks=8, shm=shm, stopped=stopped)])
    assert [end.exit for end in ends] == [0] * 8, ends
    assert ends[0].transports == ["posix"]


def test_sysv_limits_leave_the_other_transports() -> None:
    limits = SYSV_LIMITS[1:]
    machines = [Machine(sysv=sysv) for sysv in limits]
    all_ends = check(machines)
    for machine, ends in zip(machines, all_ends, strict=True):
        assert [end.exit for end in ends] == [0, 0], f"{machine}: {ends}"
    ends = all_ends[limits.index(NO_SYSV)]
    (warning,) = ends[0].warnings
    assert "kernel.shmmni=0" in warning
    assert "sysctl" in warning
    assert ends[0].transports == ["posix"]


def test_without_any_shared_memory_tcp_is_left() -> None:
    (ends,) = check([Machine(shm="1m", sysv=NO_SYSV)])
    assert [end.exit for end in ends] == [0, 0], ends
    assert ends[0].transports == ["tcp"]
    assert len(ends[0].warnings) == 2


def test_the_users_choice_is_respected() -> None:
    machines = [
        machine_with("tcp", shm="1m"),
        machine_with("sysv", shm="1m"),
        machine_with("posix,tcp", shm="1m"),
        machine_with("^posix", shm="1m"),
        machine_with("self,tcp", shm="1m"),
    ]
    for machine, ends in zip(machines, check(machines), strict=True):
        assert [end.exit for end in ends] == [0, 0], f"{machine}: {ends}"
        expected = ["sysv"] if machine.env["UCX_TLS"] in ("sysv", "^posix") else ["tcp"]
        assert ends[0].transports == expected, machine
        # A transport that the user does not want is not missed.
        assert bool(ends[0].warnings) == (machine.env["UCX_TLS"] == "posix,tcp"), machine


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (machine_with("posix", shm="1m"), ("UCX_TLS=posix", "/dev/shm has 1 MiB", "--shm-size=1g")),
        (machine_with("sysv", sysv=NO_SYSV), ("UCX_TLS=sysv", "kernel.shmmni=0", "sysctl")),
        (
            machine_with("shm", shm="1m", sysv=NO_SYSV),
            ("UCX_TLS=shm", "/dev/shm has 1 MiB", "kernel.shmmni=0"),
        ),
        (machine_with("nonsense"), ("UCX_TLS=nonsense", "q7x2 info")),
    ],
    ids=str,
)
def test_if_nothing_is_left_the_limit_is_named(machine: Machine, expected: tuple[str, ...]) -> None:
    (ends,) = check([machine])
    for end in ends:
        assert end.exit == 3
        assert all(text in end.error for text in expected), end.error
        assert "\n" not in end.error.strip()


def test_ranks_that_share_no_transport_are_told_which_each_has() -> None:
    (ends,) = run([Machine(rank_env={"0": {"UCX_TLS": "sysv"}, "1": {"UCX_TLS": "tcp"}})])
    assert [end.exit for end in ends] == [3, 3], ends
    text = "\n".join(end.error for end in ends)
    assert all(word in text for word in ("rank 0", "sysv", "UCX_TLS")), text


@pytest.mark.nightly("up to an hour: 66 machines")
@pytest.mark.timeout(3600)  # 66 machines; each has a deadline of its own
@pytest.mark.parametrize("tls", UCX_TLS)
@pytest.mark.parametrize("ranks", [2, 8])
def test_the_whole_matrix(ranks: int, tls: str | None) -> None:
    machines = [
        machine_with(tls, ranks=ranks, shm=shm, sysv=sysv)
        for shm, sysv in itertools.product(SHM_SIZES, SYSV_LIMITS)
    ]
    check(machines)
