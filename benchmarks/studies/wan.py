"""Time to the same loss between two distant sites: DDP over Gloo beside q7x2.

Two sites of two virtual hosts train the small GPT of the study `train`. The line between the sites
carries 100 Mbit/s, has a round trip of 100 ms, and loses 0.05 % of the packets on each way; TCP's
congestion control is `cubic`. Hooks compress from the first step. It needs root. There are three
parts:

- `turns`: methods take turns in the same processes, in blocks of a few steps, so whatever else
  happens on the machine hits all of them alike. Each block begins after a pause, in which TCP
  forgets how fast the line is.
- `trainings`: each method trains from start to end over the line. Its clock stops while the loss
  on held-out text is computed. With further seeds it trains without the line, for the losses.
- `alone`: blocks of steps that follow each other, for the two methods that are not trained to the
  end: Gloo, and q7x2 with one connection for each pair of hosts. DDP without compression has the
  same losses over any backend. So their curve is that of DDP over q7x2, with as many of their own
  median steps on the axis of time.

The time of a block is that of the slowest rank. Figures are medians over the blocks.

What the results file has, with the same options, is not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch.distributed as dist

from benchmarks.harness import inference, ranks, report, timing
from benchmarks.harness.arguments import chosen, option
from benchmarks.studies.train.cadence import CADENCE_BY_LABEL, DILOCO, CadenceTraining
from benchmarks.studies.train.methods import BASELINE, BY_LABEL, UNCOMPRESSED
from benchmarks.studies.train.study import RECIPES
from benchmarks.studies.train.training import Groups, Replica, Training
from tests.lab import Line, WideLab, WideTopology
from tests.lab.topology import bits_per_second
from tests.lab.wide_cli import sites

TURNS, TRAININGS, ALONE = "turns", "trainings", "alone"
ONE_CONNECTION = "DDP, q7x2, one connection"
RECIPE = RECIPES["cadence"]


@dataclass(frozen=True)
class Method:
    """Attributes:
    line: What the user writes.
    block: Steps of a block.
    every: Steps between two looks at the held-out loss; 0: the method is not trained to the end.
    patience: How long it may train to reach the final loss of DDP, in trainings of DDP.
    """

    label: str
    line: str
    block: int
    every: int = 0
    patience: int = 1


METHODS = {
    method.label: method
    for method in (
        Method(BASELINE, 'DDP, `"gloo"`', 2),
        Method(ONE_CONNECTION, 'DDP, `"q7x2"`, with `Q7X2_STREAMS=0`', 2),
        Method(UNCOMPRESSED, 'DDP, `"q7x2"`', 5, every=10),
        Method("int8", '`q7x2.Quantize("int8")`', 5, every=10, patience=2),
        Method("PowerSGD 8", "`q7x2.PowerSGD(rank=8)`", 5, every=10, patience=2),
        Method(
            DILOCO,
            f"`q7x2.cadence.DiLoCo(..., sync_every={RECIPE['interval']})`",
            RECIPE["interval"],
            every=RECIPE["interval"],
            patience=5,
        ),
    )
}
TRAINED = tuple(label for label, method in METHODS.items() if method.every)
# Groups of a process share what it knows about the line, which depends on Q7X2_STREAMS.
IN_TURNS = tuple(label for label in METHODS if label != ONE_CONNECTION)

OPTIONS = {
    "only": option((TURNS, TRAININGS, ALONE), "parts", choices=(TURNS, TRAININGS, ALONE)),
    "hosts": option((2, 2), type=sites, metavar="SITESxHOSTS"),
    "rate": option("100mbit", "of the line"),
    "rtt": "100ms",
    "loss": option("0.05%", "on each way"),
    "rounds": option(8, "blocks of each method"),
    "steps": option(210, "of the training of DDP"),
    "seeds": option(3, "of the trainings; the first one has the line"),
    "line_seed": option(1, "of the losses of packets"),
    "fresh": option(False, "measure again what the results file has"),
}


def KEY(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["part"], row["method"], row["seed"]


# ---- measuring -----------------------------------------------------------------------------------


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each method and part, and for each seed of the trainings."""
    line = Line(args.rate, args.rtt, loss=args.loss)
    topology = WideTopology(*args.hosts, line=line, seed=args.line_seed)
    known = {KEY(row): row for row in _measured(args, topology)}
    jobs = [(TURNS, IN_TURNS)] + [(ALONE, (label,)) for label in METHODS if label not in TRAINED]
    for part, labels in jobs:
        if part not in args.only or all((part, label, 0) in known for label in labels):
            continue
        spec = {"part": part, "rounds": args.rounds, "seed": 0}
        found = _run({**spec, "methods": labels}, topology)
        for label in labels:
            yield {**spec, "method": label, **found[label], **_facts(topology)}
    if TRAININGS not in args.only:
        return
    for seed in range(args.seeds):
        for label in TRAINED:
            spec = {"part": TRAININGS, "method": label, "seed": seed, "steps": args.steps}
            if KEY(spec) in known:
                continue
            if seed:
                found = _run(spec, None, topology.hosts)
            else:
                base = known.get((TRAININGS, UNCOMPRESSED, 0))
                target = {"target": base["held_out"][-1]} if base else {}
                found = _run({**spec, **target}, topology)
            known[KEY(spec)] = {**spec, **found, **_facts(topology)}
            yield known[KEY(spec)]


def _measured(args: argparse.Namespace, topology: WideTopology) -> list[dict[str, Any]]:
    """Rows of the results file that need not be measured again."""
    if args.fresh or not args.out.exists():
        return []
    wanted = {"topology": topology.describe(), **chosen(args, "rounds", "steps")}
    return [
        row
        for row in json.loads(args.out.read_text())["rows"]
        if all(row.get(name, value) == value for name, value in wanted.items())
    ]


def _run(spec: Mapping[str, Any], topology: WideTopology | None, hosts: int = 0) -> dict[str, Any]:
    """What the ranks find: over the line, or on this machine alone."""

    def heard(rank: int, text: str) -> None:
        if rank == 0:
            print(f"  {text.strip()}", file=sys.stderr)

    if topology is None:
        return ranks.run(__name__, spec, hosts, apart=True, own_cache=False, on_line=heard)
    env = {"Q7X2_STREAMS": "0"} if spec.get("methods") == (ONE_CONNECTION,) else {}
    with WideLab(topology) as lab:
        return ranks.run(__name__, spec, lab=lab, env=env, on_line=heard)


def _facts(topology: WideTopology) -> dict[str, Any]:
    return {"topology": topology.describe(), "load_average": os.getloadavg()[0]}


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    dist.init_process_group("gloo")
    return _train(spec) if spec["part"] == TRAININGS else _times(spec)


def _replica(label: str, seed: int) -> Replica:
    if label == DILOCO:
        return CadenceTraining(CADENCE_BY_LABEL[label], RECIPE, Groups(), seed)
    method = BY_LABEL[UNCOMPRESSED if label == ONE_CONNECTION else label]
    return Training(method, "gpt", RECIPE, Groups(), seed)


def _times(spec: dict[str, Any]) -> dict[str, Any]:
    """By method: the medians of a step, and the seconds of a step in each block."""
    replicas = {label: _replica(label, spec["seed"]) for label in spec["methods"]}

    def block(label: str) -> None:
        begin = time.monotonic()
        for _ in range(METHODS[label].block):
            replicas[label].step()
        if dist.get_rank() == 0:
            seconds = (time.monotonic() - begin) / METHODS[label].block
            print(f"{label}: {seconds:.3f} s per step", flush=True)

    ways = {label: lambda _, label=label: block(label) for label in replicas}
    found, _ = timing.in_turns(ways, spec["rounds"], lambda turn: None)
    return {
        label: {
            "seconds": [each / METHODS[label].block for each in way["all_seconds"]],
            **{name: way[name] / METHODS[label].block for name in ("bytes_sent", "cpu_seconds")},
        }
        for label, way in found.items()
    }


def _train(spec: dict[str, Any]) -> dict[str, Any]:
    """The seconds so far and the held-out loss, before the training and after every few steps.

    It takes as many steps as the training of DDP, and then goes on until the loss is the target.
    """
    method, replica = METHODS[spec["method"]], _replica(spec["method"], spec["seed"])
    target = spec.get("target", math.inf)
    seconds, held_out = [0.0], [replica.score()[0]]
    for steps in range(0, method.patience * spec["steps"], method.every):
        if steps >= spec["steps"] and min(held_out) <= target:
            break
        dist.barrier()
        took = timing.timed(lambda: [replica.step() for _ in range(method.every)])
        seconds.append(round(seconds[-1] + timing.largest([took])[0], 3))
        held_out.append(round(replica.score()[0], 5))
        if dist.get_rank() == 0:
            print(f"{spec['method']}: {seconds[-1]:.1f} s, loss {held_out[-1]}", flush=True)
    return {
        "every": method.every,
        "seconds": seconds,
        "held_out": held_out,
        "parameters": replica.parameters,
    }


# ---- what the results mean -----------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """A method beside DDP over Gloo.

    Attributes:
        step: Median seconds of a step, of the training or alone.
        turns: The same in turns with the other methods; None: not measured.
        cpu: CPU seconds of all ranks per step, those of computing included.
        curve: Seconds, and the held-out loss at these times.
        reached: Seconds to the final loss of DDP; None: never.
        price: Final loss minus that of DDP after equally many steps, by seed.
    """

    method: Method
    step: float
    turns: float | None
    cpu: float
    curve: tuple[list[float], list[float]]
    reached: float | None
    price: list[float]


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, Compared]:
    """By method, what the rows of the results file say."""
    by_key = {KEY(row): row for row in rows}
    base = by_key[TRAININGS, UNCOMPRESSED, 0]
    target = base["held_out"][-1]
    found = {}
    for label, method in METHODS.items():
        turns, trained = by_key.get((TURNS, label, 0)), by_key.get((TRAININGS, label, 0))
        times = turns or by_key[ALONE, label, 0]
        if trained is not None:
            curve = trained["seconds"], trained["held_out"]
            blocks = [b - a for a, b in itertools.pairwise(trained["seconds"])]
            step = median(blocks) / trained["every"]
        else:
            step = median(by_key[ALONE, label, 0]["seconds"])
            steps = [base["every"] * i for i in range(len(base["held_out"]))]
            curve = [step * each for each in steps], base["held_out"]
        found[label] = Compared(
            *(method, step, median(turns["seconds"]) if turns else None),
            *(times["cpu_seconds"], curve),
            inference.first_at_most(*curve, target),
            [
                _loss_after(by_key[TRAININGS, label, seed], base["steps"])
                - by_key[TRAININGS, UNCOMPRESSED, seed]["held_out"][-1]
                for part, other, seed in by_key
                if part == TRAININGS and other == label != UNCOMPRESSED
            ],
        )
    return found


def _loss_after(row: Mapping[str, Any], steps: int) -> float:
    loss: float = row["held_out"][steps // row["every"]]
    return loss


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The comparison in Markdown."""
    found = compared(rows)
    gloo = found[BASELINE].reached
    assert gloo is not None
    head = (
        *("training", "step", "step, in turns", "CPU per step"),
        *("time to the loss", "faster", "price"),
    )
    lines = [
        [
            each.method.line,
            report.duration(each.step),
            report.duration(each.turns) if each.turns else "not measured",
            report.duration(each.cpu),
            f"{each.reached:.0f} s" if each.reached else "not reached",
            f"{gloo / each.reached:.2g} x" if each.reached else "never",
            _price(each.price),
        ]
        for each in found.values()
    ]
    base = next(r for r in rows if KEY(r) == (TRAININGS, UNCOMPRESSED, 0))
    loads = [row["load_average"] for row in rows if row["seed"] == 0]  # those with the line
    seeds = 1 + max(row["seed"] for row in rows)
    return (
        report.markdown(head, lines)
        + f"\n{base['topology']}. {_gradients(base)} The loss is {base['held_out'][-1]:.3f}, that "
        f"of {base['steps']} steps of DDP. Prices: {seeds} seeds, mean and range. The load average "
        f"of the machine was {min(loads):.1f} to {max(loads):.1f}.\n"
    )


def _gradients(row: Mapping[str, Any]) -> str:
    """How many bytes of gradients a step has, and how long the line needs for them."""
    size = 4 * row["parameters"]
    rate = bits_per_second(row["topology"].partition("rate ")[2].partition(",")[0])
    return (
        f"The model has {size / 4e6:.1f} million parameters. The line carries their "
        f"{size / 1e6:.1f} MB of gradients in {report.duration(8 * size / rate)} at best."
    )


def _price(price: Sequence[float]) -> str:
    if len(price) < 2:
        return "none" if not price else f"{price[0]:+.3f}"
    return f"{mean(price):+.3f} ({min(price):+.3f} to {max(price):+.3f})"


def write_more(out: Path, results: Mapping[str, Any]) -> None:
    """Draws the picture beside the results file, if all is measured that it shows."""
    keys = {KEY(row) for row in results["rows"]}
    needed = {(TRAININGS if label in TRAINED else ALONE, label, 0) for label in METHODS}
    needed |= {(TURNS, label, 0) for label in IN_TURNS}
    if needed <= keys:
        _draw(compared(results["rows"]), out.with_suffix(".png"))


def _draw(found: Mapping[str, Compared], path: Path) -> None:
    """The curves of all methods, each until it has reached the loss, with its name at its end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter
    from q7x2._core.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION

    colours = dict(zip(METHODS, (GREY, PURPLE, ORANGE, VERMILION, BLUE, GREEN), strict=True))
    figure, axis = plt.subplots(figsize=(10, 5), layout="constrained")
    target = found[UNCOMPRESSED].curve[1][-1]
    axis.axhline(target, color="0.6", linewidth=0.8)
    for number, (label, each) in enumerate(found.items()):
        times, losses = each.curve
        end = each.reached or times[-1]
        shown = [(t, loss) for t, loss in zip(times, losses, strict=True) if 0 < t < end]
        shown.append((end, target if each.reached else losses[-1]))
        dashes = "-" if label in TRAINED else "--"
        axis.plot(*zip(*shown, strict=True), color=colours[label], linestyle=dashes, linewidth=2)
        axis.plot(*shown[-1], "o", color=colours[label])
        text = f"{label}\n{end:.0f} s" if each.reached else f"{label}\nnot reached"
        below = (0, -14 - 30 * (number % 2))  # neighbours may be near
        place: dict[str, Any] = {"xytext": below, "textcoords": "offset points", "ha": "center"}
        axis.annotate(text, shown[-1], **place, va="top", color=colours[label], fontsize=9)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_ylim(target - 0.2, target + 0.7)  # room for the names; the first steps are steep
    axis.margins(x=0.08)
    axis.set_title("The same GPT on two sites, 100 ms apart: time to the loss of DDP", fontsize=10)
    axis.set_xlabel("seconds")
    axis.set_ylabel("held-out loss, nats per byte")
    axis.grid(alpha=0.25)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def row_lines(row: Mapping[str, Any]) -> Iterator[str]:
    load = f"load average {row['load_average']:.1f}"
    if row["part"] != TRAININGS:
        step, low, high = inference.median_interval(row["seconds"])
        yield (
            f"{row['method']}: {report.duration(step)} per step ({report.duration(low)} to "
            f"{report.duration(high)}), CPU {report.duration(row['cpu_seconds'])}, {load}"
        )
    else:
        yield (
            f"{row['method']}, seed {row['seed']}: loss {row['held_out'][-1]:.4f} after "
            f"{row['seconds'][-1]:.0f} s, {load}"
        )
