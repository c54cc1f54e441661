"""The options of communication hooks: one class per algorithm."""

from q7x2._hook_base import HookOptions, Job
from q7x2._hook_block_sparse import BlockSparse
from q7x2._hook_codecs import LionUpdate, OneBit, Quantize, SignSGD, TopK
from q7x2._hook_compose import Allreduce, Compose
from q7x2._hook_compressed import Compressed
from q7x2._hook_momentum import EF21, MeanMomentum
from q7x2._hook_power_sgd import PowerSGD

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
