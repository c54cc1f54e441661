"""Random arguments of collective calls, made from a seed; see ``test_random_calls``.

A case is one set of arguments for each rank. Every rank makes all of them from the seed, so it
knows what the others contribute and can compute its result. A case is one of three kinds:

- ``fits``: the ranks agree and the arguments are in order. Every rank must return the right result.
- ``wrong``: no rank can carry out its arguments. Every rank must raise, and the group goes on.
- ``differs``: one rank's arguments do not fit those of the others. Some rank must raise in the call
  itself or in the next, every other one in the call after that at the latest, and none by its
  timeout.
"""

from __future__ import annotations

import dataclasses
import random

import torch

SAME_WIDTH = {
    torch.float32: torch.int32,
    torch.int32: torch.float32,
    torch.float64: torch.int64,
    torch.int64: torch.complex64,
    torch.complex64: torch.float64,
    torch.float16: torch.bfloat16,
    torch.bfloat16: torch.int16,
    torch.int16: torch.float16,
    torch.int8: torch.uint8,
    torch.uint8: torch.bool,
    torch.bool: torch.int8,
}
NUMBERS = [torch.float32, torch.float64, torch.int64, torch.float16, torch.bfloat16, torch.int8]
ANYTHING = list(SAME_WIDTH)
OPS = ["SUM", "MIN", "MAX", "PRODUCT"]
LAYOUTS = ["dense", "dense", "offset", "strided", "column"]
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = (
    "all_reduce",
    "all_reduce_coalesced",
    "coalescing",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_many",
    "reduce_scatter_tensor",
)
# Lists whose tensors may differ in length: ``counts[r][0]`` elements are those of rank r's part.
UNEVEN = ("all_gather", "gather", "reduce_scatter", "scatter")
CODED = ("coded_all_reduce", "coded_all_gather", "coded_reduce_scatter")
KINDS = (
    *REDUCING,
    *CODED,
    "all_gather",
    "all_gather_lists",
    "all_gather_many",
    "all_gather_tensor",
    "all_to_all",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_single",
    "broadcast",
    "gather",
    "scatter",
    "send",
    "sparse",
)


@dataclasses.dataclass
class Arguments:
    """One rank's view of a call. ``counts[s][d]`` elements go from rank s to rank d."""

    kind: str
    dtype: torch.dtype
    counts: list[list[int]]
    root: int = 0
    op: str = "SUM"
    width: int = 1  # of a row, in all_to_all_single
    layout: str = "dense"
    aliased: bool = False
    missing: int = 0  # tensors that a list is short of
    own_excess: int = 0  # elements that the rank's own output piece is longer than its input piece
    dtype_out: torch.dtype | None = None
    codec: str = "none"


@dataclasses.dataclass
class Case:
    seed: str
    kind: str  # "fits", "wrong", "differs"
    what: str
    ranks: list[Arguments]

    def __str__(self) -> str:
        return f"[{self.seed}] {self.kind} ({self.what}): {self.ranks}"


def random_size(rng: random.Random) -> int:
    sizes = [0, 1, 2, 3, 5, 8, 17, 64, 100, 1000, 4099, 70001]
    return rng.choices([*sizes, 1 << 20], [3] * 4 + [2] * 7 + [1, 0.3])[0]


def random_arguments(rng: random.Random, world: int) -> Arguments:
    kind = rng.choice(KINDS)
    numeric = kind in REDUCING or kind == "sparse"
    dtype = rng.choice(NUMBERS if numeric else ANYTHING)
    size = random_size(rng)
    counts = [[size] * world for _ in range(world)]
    if kind in ("all_to_all", "all_to_all_single") and rng.random() < 0.8:
        counts = [[random_size(rng) if size else 0 for _ in range(world)] for _ in range(world)]
    if kind in UNEVEN and rng.random() < 0.5:
        counts = [[random_size(rng)] * world for _ in range(world)]
    made = Arguments(kind, dtype, counts, rng.randrange(world), rng.choice(OPS))
    made.layout = rng.choice(LAYOUTS)
    made.aliased = kind.endswith(("_tensor", "_single")) and rng.random() < 0.25
    if kind == "all_to_all_single":
        made.width = rng.choice([1, 1, 3])
    if kind in CODED:
        made.dtype, made.op = rng.choice([torch.float32, torch.bfloat16]), "SUM"
        codecs = ["fp32", "bf16", "int8", "int4", "topk:0.5", "onebit"]
        if kind != "coded_all_gather":
            codecs.append("sumint8")
        if kind == "coded_all_reduce":
            codecs.append("blocks")
        made.codec = rng.choice(codecs)
    if kind == "sparse":
        made.dtype, made.op = torch.float32, "SUM"
    return made


def spoil(rng: random.Random, made: Arguments, rank: int, world: int) -> tuple[str, Arguments]:
    """The arguments of a rank that does not fit those that have ``made``."""
    other = dataclasses.replace(made, counts=[row[:] for row in made.counts], aliased=False)
    ways = ["dtype", "size", "kind"]
    if made.kind in ROOTED:
        ways += ["root", "root"]
    if made.kind in REDUCING:
        ways.append("op")
    if made.kind in ("all_to_all", "all_to_all_single"):
        ways += ["pair", "pair", "pair", "empty pair"]
    if made.kind in ("gather", "scatter") and rank == made.root:
        ways.append("list")
    if made.kind in UNEVEN:
        ways.append("part")
    if made.kind == "send" or sum(map(sum, made.counts)) == 0:
        ways = ["size"]  # there is nothing else to disagree about
    way = rng.choice(ways)
    if way == "dtype":
        other.dtype = SAME_WIDTH[made.dtype]
        if made.kind in CODED:
            other.dtype = torch.bfloat16 if made.dtype == torch.float32 else torch.float32
        elif made.kind in REDUCING:
            other.dtype = rng.choice([d for d in NUMBERS if d != made.dtype])
    elif way == "size":
        grown = rng.choice([1, 2, 1000, 1 << 20])
        other.counts = [[n + grown for n in row] for row in made.counts]
    elif way == "kind":
        kinds = ["all_reduce", "broadcast"]
        if not made.kind.startswith("all_gather"):
            kinds.append("all_gather_tensor")
        kinds = [k for k in kinds if k != made.kind]
        size = 1 + random_size(rng)
        other = Arguments(rng.choice(kinds), torch.float32, [[size] * world] * world, rank)
    elif way == "root":
        other.root = (made.root + rng.randrange(1, world)) % world
    elif way == "list":
        other.missing = rng.choice([1, world])
    elif way == "op":
        other.op = rng.choice([op for op in OPS if op != made.op])
    elif way == "part":
        part = (rank + 1) % world if rank == made.root or made.kind not in ROOTED else rank
        other.counts[part] = [
            n + rng.choice([1, 2, 1 << 20]) for n in other.counts[part][:1]
        ] * world
    elif way == "pair":
        peer = (rank + rng.randrange(1, world)) % world
        s, d = rng.choice([(rank, peer), (peer, rank)])
        other.counts[s][d] += rng.choice([1, 7, 1 << 20])
    elif way == "empty pair":
        peer = (rank + rng.randrange(1, world)) % world
        s, d = rng.choice([(rank, peer), (peer, rank)])
        other.counts[s][d] = 0 if other.counts[s][d] else 5
    return way, other


def random_case(seed: str, world: int) -> Case:
    rng = random.Random(seed)
    made = random_arguments(rng, world)
    ranks = [made] * world
    choice = rng.random()
    if choice < 0.55 or (choice < 0.7 and made.kind in ("send", "sparse", *CODED)):
        return Case(seed, "fits", "", ranks)
    if choice < 0.7:
        ways = ["root"] if made.kind in ROOTED else []
        if made.kind in ("all_gather", "reduce_scatter", "all_to_all"):
            ways += ["list", "dtype"]
        elif made.kind.endswith(("_tensor", "_many")):
            ways += ["own", "dtype"]
        if made.kind.startswith("all_to_all"):
            ways += ["own", "own", "dtype"]
        if made.kind in ("all_gather", "reduce_scatter"):
            ways.append("own")
        if not ways:
            return Case(seed, "fits", "", ranks)
        way = rng.choice(ways)
        made = dataclasses.replace(made, aliased=False)
        if way == "root":
            made.root = rng.choice([-1, world, 1 << 20])
        elif way == "list":
            made.missing = rng.choice([1, world])
        elif way == "own":
            # Never a multiple of the size; the input piece gets shorter if this is negative.
            shortest = min(made.counts[r][r] for r in range(world))
            made.own_excess = rng.choice([1, 5, 4099, -shortest] if shortest else [1, 5, 4099])
        else:
            made.dtype_out = SAME_WIDTH[made.dtype]
        return Case(seed, "wrong", way, [made] * world)
    odd = 1 if made.kind == "send" else rng.randrange(world)
    way, other = spoil(rng, made, odd, world)
    ranks = [other if r == odd else made for r in range(world)]
    return Case(seed, "differs", f"{way} of rank {odd}", ranks)
