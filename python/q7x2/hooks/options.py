"""The options of communication hooks: one class per algorithm."""

from q7x2.hooks.base import HookOptions, Job
from q7x2.hooks.block_sparse import BlockSparse
from q7x2.hooks.codecs import LionUpdate, OneBit, Quantize, SignSGD, TopK
from q7x2.hooks.compose import Allreduce, Compose
from q7x2.hooks.compressed import Compressed
from q7x2.hooks.momentum import EF21, MeanMomentum
from q7x2.hooks.power_sgd import PowerSGD

__all__ = [
    "EF21",
    "Allreduce",
    "BlockSparse",
    "Compose",
    "Compressed",
    "HookOptions",
    "Job",
    "LionUpdate",
    "MeanMomentum",
    "OneBit",
    "PowerSGD",
    "Quantize",
    "SignSGD",
    "TopK",
]
