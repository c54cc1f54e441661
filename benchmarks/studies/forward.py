"""Steps whose all-gathers overlap the next forward, beside DDP, where messages take as long as
the computation.

Virtual hosts with one rank each train a small GPT in turns: DDP over q7x2, DDP attached with
forward overlap, and one all-reduce after backward whose leading bytes the next forward uses as they
become final (the chaining of C-Cube, Cho et al., HPCA 2023). The computation without messages and
the messages without computation are measured in the same turns: no step can be shorter than the
longer of the two. With --rate auto, a first lab measures the computation, and the rate of the
second one makes messages take as long. It needs root.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import q7x2
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import ranks, report, timing
from benchmarks.harness.arguments import chosen, names, option, size
from tests.lab import Topology

COMPUTE, WIRE, DDP, OURS = "computation alone", "messages alone", "DDP", "overlap"
CHAINED = "one all-reduce"
WAYS = (COMPUTE, WIRE, DDP, OURS, CHAINED)
# A step takes at most so many times the bound, and DDP at least so many times a step.
MOST_OF_BOUND, LEAST_SPEEDUP = 1.15, 1.25
MOST_OFF = 0.15  # the prediction, relative to the measured step
VOCABULARY = 256

OPTIONS = {
    "hosts": option("2,4", "numbers of virtual hosts"),
    "rate": option("auto", "of each NIC, as tc spells it, or auto"),
    "width": 256,
    "layers": 6,
    "context": option(64, "tokens of a sequence"),
    "batch": option(4, "sequences of a rank"),
    "bucket_mb": option(2.0, "of DDP"),
    "chunk": option(None, "OverlapOptions(chunk_bytes=); chosen if not given", type=size),
    "window": option(None, "OverlapOptions(window=); chosen if not given", type=int),
    "early": option(None, "OverlapOptions(early=); chosen if not given", type=float),
    "steps": option(15, "in a row, of each way"),
    "rounds": 9,
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    options = chosen(args, *OPTIONS)
    hosts, rate = options.pop("hosts"), options.pop("rate")
    cases = [case(int(number), rate, options) for number in names(hosts)]
    return {**options, "cases": cases}


def case(hosts: int, rate: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The figures of one number of hosts."""

    def run(rate: str, **changes: Any) -> dict[str, Any]:
        # Both ways sum in one order, so their weights can be compared bit for bit.
        env = {"Q7X2_ALGO": "ring", **ranks.UNREFINED}
        topology = Topology(hosts=hosts, rate=rate)
        found: dict[str, Any] = ranks.run(__name__, spec | changes, topology=topology, env=env)
        return found

    if rate == "auto":
        rate = matching_rate(run("1gbit", rounds=1, ways=[COMPUTE]), hosts)
    return {"hosts": hosts, "rate": rate, **run(rate, ways=list(WAYS))}


def matching_rate(figures: dict[str, Any], hosts: int) -> str:
    """The rate at which an all-reduce of the gradients takes as long as the computation."""
    sent = 2 * (hosts - 1) / hosts * figures["gradient_bytes"]
    mbit = 8e-6 * sent / figures["ways"][COMPUTE]["seconds"]
    return f"{max(1, round(mbit))}mbit"


def row_lines(figures: dict[str, Any]) -> list[str]:
    """The figures for a person, and whether the goals are met."""
    ways = figures["ways"]
    lines = [
        f"{figures['hosts']} hosts at {figures['rate']}, "
        f"{figures['gradient_bytes'] / 1e6:.1f} MB of gradients",
        *(
            f"{name:18} {report.duration(each['seconds']):>8} per step, CPU "
            f"{each['cpu_seconds']:.3f} s of all ranks"
            for name, each in ways.items()
        ),
    ]
    ours, bound = ways[OURS]["seconds"], max(ways[COMPUTE]["seconds"], ways[WIRE]["seconds"])
    lines.append(f"overlap takes {ours / bound:.2f} of the bound, goal at most {MOST_OF_BOUND}")
    speedup = ways[DDP]["seconds"] / ours
    lines.append(f"overlap is {speedup:.2f} x as fast as DDP, goal {LEAST_SPEEDUP} x")
    lines.append(f"weights equal to DDP's, bit for bit: {figures['equal']}")
    chosen = figures["chosen"]
    if chosen is not None:
        off = chosen["predicted"] / ours - 1
        lines.append(
            f"chosen: {chosen['chunks']} chunks, window {chosen['window']}, early "
            f"{chosen['early']:g}; a step predicted as {report.duration(chosen['predicted'])}, "
            f"{off:+.0%}, goal within {MOST_OFF:.0%}"
        )
    return lines


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures; those of ways are per step."""
    dist.init_process_group("q7x2")
    training = Training(spec)
    calls = {name: training.ways[name] for name in spec["ways"]}
    ways, _ = timing.in_turns(calls, spec["rounds"], lambda _: None)
    for figures in ways.values():
        figures["all_seconds"] = [each / spec["steps"] for each in figures["all_seconds"]]
        for name in ("seconds", "bytes_sent", "cpu_seconds"):
            figures[name] /= spec["steps"]
    return {"gradient_bytes": training.gradient_bytes, "ways": ways, **training.verdict()}


class Training:
    """The same GPT three times: for DDP, for overlap, and for the computation alone."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec, self._steps = spec, dict.fromkeys(WAYS, 0)
        self._models = {}
        for name in (COMPUTE, DDP, OURS):
            ddp = DistributedDataParallel(
                gpt(spec), bucket_cap_mb=spec["bucket_mb"], gradient_as_bucket_view=True
            )
            self._models[name] = ddp, torch.optim.AdamW(ddp.parameters(), lr=1e-3)
        self._chained = Chained(gpt(spec))
        ours, optimizer = self._models[OURS]
        options = q7x2.overlap.OverlapOptions(
            chunk_bytes=spec["chunk"], window=spec["window"], early=spec["early"]
        )
        self._attached = q7x2.overlap.attach(ours, optimizer, options)
        self.gradient_bytes = sum(4 * p.numel() for p in ours.parameters())
        bucket = round(spec["bucket_mb"] * (1 << 18))
        whole = torch.zeros(self.gradient_bytes // 4)
        self._buckets = list(torch.split(whole, bucket))
        self._rank = dist.get_rank()
        self.ways: dict[str, Callable[[None], None]] = {
            COMPUTE: self._compute,
            WIRE: self._send,
            DDP: lambda _: self._train(DDP),
            OURS: self._overlap,
            CHAINED: self._chain,
        }

    def _compute(self, _: None) -> None:
        with self._models[COMPUTE][0].no_sync():
            self._train(COMPUTE)

    def _send(self, _: None) -> None:
        for _ in range(self._spec["steps"]):
            works = [dist.all_reduce(bucket, async_op=True) for bucket in self._buckets]
            for work in works:
                work.wait()

    def _overlap(self, _: None) -> None:
        self._train(OURS)
        self._attached.flush()

    def _chain(self, _: None) -> None:
        for tokens in self._batches(CHAINED):
            (loss_of(self._chained.model, tokens) / dist.get_world_size()).backward()
            self._chained.step()
        self._chained.flush()

    def _train(self, name: str) -> None:
        ddp, optimizer = self._models[name]
        for tokens in self._batches(name):
            loss_of(ddp, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

    def _batches(self, name: str) -> Iterator[torch.Tensor]:
        shape = (self._spec["batch"], self._spec["context"] + 1)
        for _ in range(self._spec["steps"]):
            generator = torch.Generator().manual_seed(1000 * self._steps[name] + self._rank)
            yield torch.randint(VOCABULARY, shape, generator=generator)
            self._steps[name] += 1

    def verdict(self) -> dict[str, Any]:
        """Whether both ways have the same weights on all ranks, and what has been waited for."""
        pairs = zip(
            self._models[DDP][0].parameters(), self._models[OURS][0].parameters(), strict=True
        )
        equal = torch.tensor(int(all(torch.equal(a, b) for a, b in pairs)))
        dist.all_reduce(equal, dist.ReduceOp.MIN)
        stats, timeline = self._attached.stats, self._attached.timeline
        steps = max(stats.steps, 1)
        chosen = None
        if timeline is not None:
            best = timeline.candidates[0]
            chosen = {
                "chunks": best.chunks,
                "window": best.window,
                "early": best.early,
                "predicted": best.seconds,
                "timeline": str(timeline).splitlines(),
            }
        return {
            "equal": bool(equal),
            "chosen": chosen,
            "chunks": stats.chunks,
            "step_wait_seconds": stats.step_wait_seconds / steps,
            "forward_wait_seconds": stats.forward_wait_seconds / steps,
        }


class Chained:
    """One all-reduce per step, in the order of forward; each module's parameters step before it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        parts = [(model, [*model.tokens.parameters(), *model.positions.parameters()])]
        parts += [(m, list(m.parameters())) for m in (*model.layers, model.norm, model.head)]
        self._gradients = torch.zeros(sum(p.numel() for _, each in parts for p in each))
        self._work: Any = None
        self._waiting: list[tuple[int, torch.optim.Optimizer]] = []
        self._parts = []
        end = 0
        for number, (module, parameters) in enumerate(parts):
            for p in parameters:
                p.grad = self._gradients[end : end + p.numel()].view_as(p)
                end += p.numel()
            self._parts.append((end, torch.optim.AdamW(parameters, lr=1e-3)))
            module.register_forward_pre_hook(lambda *_, number=number: self._step_until(number))

    def step(self) -> None:
        """A backward has ended."""
        self._work = dist.all_reduce(self._gradients, async_op=True)
        self._waiting = list(self._parts)

    def flush(self) -> None:
        """Return when all parts have stepped."""
        self._step_until(len(self._parts) - 1)

    def _step_until(self, number: int) -> None:
        while len(self._parts) - len(self._waiting) <= number:
            end, optimizer = self._waiting.pop(0)
            self._work.wait_bytes(self._gradients.element_size() * end)
            optimizer.step()
            if not self._waiting:
                self._work.wait()
                self._gradients.zero_()  # the next backward adds to it


def loss_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Of predicting each next token."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def gpt(spec: dict[str, Any]) -> Any:
    """A decoder over bytes with learnt positions, equal on all ranks."""

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = spec["width"]
            self.tokens = nn.Embedding(VOCABULARY, width)
            self.positions = nn.Embedding(spec["context"], width)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    *(width, max(1, width // 64), 4 * width, 0.0),
                    activation="gelu",
                    batch_first=True,
                    norm_first=True,
                )
                for _ in range(spec["layers"])
            )
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, VOCABULARY, bias=False)
            mask = nn.Transformer.generate_square_subsequent_mask(spec["context"])
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.positions.weight
            for layer in self.layers:
                x = layer(x, src_mask=self.mask, is_causal=True)
            return self.head(self.norm(x))

    torch.manual_seed(0)
    return Gpt()
