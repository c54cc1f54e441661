"""Codecs on one core: bits, error and speed beside memcpy, on normal numbers and real gradients.

The calls of a codec and memcpy take turns; figures are medians. A new codec is a line of CODECS.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import Bbox
from q7x2._core.extension import load
from q7x2._core.palette import LINES
from torch import Tensor, nn

from benchmarks.harness import facts, report, timing

BLOCK = 1 << 16
CODECS = (
    *("fp16", "bf16", "fp8_e4m3", "fp8_e5m2"),
    *("int8", "int6", "int4", "int3", "int2", "int4:g=128", "int4:sr", "int4:minmax"),
    *("qsgd", "ternary", "onebit"),
    *("hadamard+int8", "hadamard+int4", "hadamard+int3", "hadamard+int2", "hadamard+onebit"),
    *("topk:0.1", "topk:0.01", "topk:0.01+int8", "randomk:0.01", "blocks:0.01", "nm:2:4"),
    *("lossless", "bf16+lossless", "int8+lossless", "int4+lossless"),
)
OPTIONS = {"elements": 1 << 23, "rounds": 5, "codecs": list(CODECS)}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    normal = torch.randn(args.elements, generator=torch.Generator().manual_seed(1))
    gradient = real_gradient(args.elements)
    rows = [
        {
            "codec": name,
            "normal": losses(name, normal),
            "gradient": losses(name, gradient),
            "rates": rates(name, normal, args.rounds),
        }
        for name in args.codecs
    ]
    return {"elements": args.elements, "codecs": rows}


def real_gradient(elements: int) -> Tensor:
    """The gradient of a small Transformer in its first steps, repeated to the wanted length."""
    torch.manual_seed(1)
    tokens = torch.randint(0, 256, (8, 64))
    tokens[:, 1::2] = tokens[:, ::2]  # something to learn
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(256, 128), nn.TransformerEncoder(layer, 2), nn.Linear(128, 256)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        logits = model(tokens)[:, :-1]
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return gradient.repeat(-(-elements // len(gradient)))[:elements].contiguous()


class Messages:
    """A tensor's messages, made with one codec."""

    def __init__(self, name: str, elements: int) -> None:
        self.codec = load().Codec(name)
        blocks = -(-elements // BLOCK)
        self.bytes = torch.zeros(blocks * self.codec.max_bytes(BLOCK), dtype=torch.uint8)
        self.lengths: list[int] = []

    def encode(self, values: Tensor, errors: Tensor | None = None) -> None:
        self.lengths = self.codec.encode(values, self.bytes, errors, block=BLOCK)

    def decode(self, out: Tensor, add: bool = False) -> None:
        self.codec.decode(self.bytes, self.lengths, out, add=add, block=BLOCK)


def losses(name: str, values: Tensor) -> dict[str, float]:
    """Bits of an element, and the relative L2 error."""
    messages = Messages(name, len(values))
    messages.encode(values)
    decoded = torch.empty_like(values)
    messages.decode(decoded)
    return {
        "bits": 8 * sum(messages.lengths) / len(values),
        "error": float((values - decoded).norm() / values.norm()),
    }


def rates(name: str, values: Tensor, rounds: int) -> dict[str, float]:
    """Medians in bytes of the input a second; memcpy takes turns with the codec."""
    messages = Messages(name, len(values))
    errors = torch.zeros_like(values)
    out = torch.zeros_like(values)
    calls: dict[str, Callable[[], object]] = {
        "memcpy": lambda: out.copy_(values),
        "encode": lambda: messages.encode(values),
        "decode": lambda: messages.decode(out),
        "decode and add": lambda: messages.decode(out, add=True),
        "encode with residual": lambda: messages.encode(values, errors),
    }
    medians = timing.median_seconds(calls, rounds, warm_ups=1)
    size = values.numel() * values.element_size()
    return {call: size / median for call, median in medians.items()}


def _beside_memcpy(call: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row['rates'][call] / row['rates']['memcpy']:.2f}"


COLUMNS: report.Columns = (
    ("codec", lambda row: f"`{row['codec']}`"),
    ("bits", lambda row: f"{row['normal']['bits']:.2f}"),
    ("error, normal", lambda row: f"{row['normal']['error']:.4f}"),
    ("error, gradient", lambda row: f"{row['gradient']['error']:.4f}"),
    ("encode with residual", _beside_memcpy("encode with residual")),
    ("encode", _beside_memcpy("encode")),
    ("decode and add", _beside_memcpy("decode and add")),
    ("GB/s encoded", lambda row: f"{row['rates']['encode with residual'] / 1e9:.1f}"),
)


def lines(body: Mapping[str, Any]) -> list[str]:
    return [report.markdown_of(COLUMNS, body["codecs"])]


def write_more(out: Path, results: dict[str, Any]) -> None:
    """The page and the picture."""
    machine, (text,) = facts.describe(results["machine"]), lines(results)
    out.with_suffix(".md").write_text(
        "# Codecs\n\nRates in multiples of memcpy's for the same input bytes, in the same run; one "
        f"core, blocks of 65,536 elements.\n\n{text}\n{machine}\n"
    )
    draw(out.with_suffix(".png"), results["codecs"], machine)


def draw(path: Path, rows: list[dict[str, Any]], caption: str) -> None:
    """Bits of an element against error; an area is a speed."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 6.4), sharey=True, layout="tight")
    kinds = (("normal", "normal numbers"), ("gradient", "gradient of a Transformer"))
    points = [
        _panel(axis, kind, title, rows) for axis, (kind, title) in zip(axes, kinds, strict=True)
    ]
    axes[0].set_ylabel("relative L2 error")
    figure.suptitle("What codecs send and lose; area: GB/s encoded with residual, one core")
    figure.supxlabel(caption, fontsize=7, color="0.45")
    # Names must not take part in the layout that they are placed in.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axis, named in zip(axes, points, strict=True):
        label(axis, renderer, named)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _panel(
    axis: Axes, kind: str, title: str, rows: list[dict[str, Any]]
) -> list[tuple[str, float, float]]:
    """Returns the names and places of its points."""
    points = []
    least = min(row[kind]["error"] for row in rows if row[kind]["error"] > 0)
    exact = 10.0 ** (math.floor(math.log10(least)) - 1)  # the place of what loses nothing
    for index, row in enumerate(rows):
        point = row[kind]
        error = point["error"] or exact
        speed = row["rates"]["encode with residual"] / 1e9
        colour = LINES[index % len(LINES)]
        axis.scatter(point["bits"], error, s=18 * speed, alpha=0.45, color=colour)
        points.append((row["codec"], point["bits"], error))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.axhline(exact * 10**0.5, color="0.6", linewidth=0.8, linestyle=":")
    axis.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: "exact" if value <= exact else f"{value:g}")
    )
    axis.set_xlabel("bits of an element")
    axis.set_title(title)
    axis.grid(alpha=0.2)
    axis.margins(0.08)
    return points


def label(axis: Axes, renderer: RendererAgg, points: list[tuple[str, float, float]]) -> None:
    """Names at the nearest free places around their points, lines leading to the far ones."""
    occupied = [
        Bbox.from_bounds(x - 4, y - 4, 8, 8)
        for x, y in (axis.transData.transform(point[1:]) for point in points)
    ]
    for name, bits, error in points:
        places = (
            (distance * math.cos(angle), distance * math.sin(angle))
            for distance in range(7, 200, 6)
            for angle in (k * math.pi / 8 for k in (1, -1, 7, -7, 3, -3, 5, -5, 0, 8))
        )
        for x, y in places:
            text = axis.annotate(
                name,
                (bits, error),
                xytext=(x, y),
                textcoords="offset points",
                fontsize=6,
                ha="left" if x >= 0 else "right",
                va="center",
                arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "0.6", "shrinkB": 2},
            )
            text.update_positions(renderer)
            box = Text.get_window_extent(text)  # without the line
            inside = axis.bbox.containsx(box.x0) and axis.bbox.containsx(box.x1)
            if inside and not any(box.overlaps(other) for other in occupied):
                occupied.append(box)
                break
            text.remove()
