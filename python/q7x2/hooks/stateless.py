"""Those of PyTorch's hooks that keep no state, for ``q7x2.comm_hooks``."""

# No postponed annotations: DDP compares those of a hook with its own classes.
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup

from q7x2.hooks.options import Allreduce, HookOptions, Quantize
from q7x2.hooks.runner import make_runner

if TYPE_CHECKING:
    from q7x2._C import HookRunner

# These hooks keep no state, so the models that share a process group share a runner.
_stateless: weakref.WeakKeyDictionary[Any, dict[HookOptions, "HookRunner"]] = (
    weakref.WeakKeyDictionary()
)


def hand_over(bucket: GradBucket, runner: "HookRunner") -> torch.futures.Future[torch.Tensor]:
    """Let a runner reduce a bucket; the future is one that DDP takes."""
    future: torch.futures.Future[torch.Tensor] = runner.reduce(bucket)
    return future.then(_value)  # DDP wants a future of a Python object from a Python function


def _value(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
    return future.value()


def reduce_over(
    group: ProcessGroup | None, bucket: GradBucket, options: HookOptions
) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket with a hook without state; ``group`` None: the default group."""
    group = dist.group.WORLD if group is None else group
    runners = _stateless.setdefault(group, {})
    if options not in runners:
        runners[options] = make_runner(
            options, group, [], device=bucket.buffer().device, serves_many_models=True
        )
    return hand_over(bucket, runners[options])


def allreduce_hook(
    process_group: ProcessGroup | None, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """The all-reduce of DDP without a hook, with the same bits.

    >>> ddp.register_comm_hook(None, q7x2.comm_hooks.allreduce_hook)

    Args:
        process_group: The ranks to average over. None: the default group.
        bucket: The gradients, from DDP.

    Returns:
        A future of the bucket's mean.
    """
    return reduce_over(process_group, bucket, Allreduce())


def fp16_compress_hook(
    process_group: ProcessGroup | None, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Gradients rounded to ``torch.float16`` on the way: half of the bytes.

    >>> ddp.register_comm_hook(None, q7x2.comm_hooks.fp16_compress_hook)

    Args:
        process_group: The ranks to average over. None: the default group.
        bucket: The gradients, from DDP.

    Returns:
        A future of the bucket's mean.
    """
    return reduce_over(process_group, bucket, Allreduce(dtype=torch.float16))


def bf16_compress_hook(
    process_group: ProcessGroup | None, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Gradients rounded to ``torch.bfloat16`` on the way: half of the bytes.

    >>> ddp.register_comm_hook(None, q7x2.comm_hooks.bf16_compress_hook)

    Args:
        process_group: The ranks to average over. None: the default group.
        bucket: The gradients, from DDP.

    Returns:
        A future of the bucket's mean.
    """
    return reduce_over(process_group, bucket, Allreduce(dtype=torch.bfloat16))


# DDP refuses a hook of this name where it finds no NCCL, which does not matter here.
bf16_compress_hook.__name__ = "q7x2_bf16_compress_hook"


def quantization_pertensor_hook(
    process_group: ProcessGroup | None, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Gradients as 8-bit integers between the least and the largest of each 1024.

    PyTorch's has one scale for a whole bucket, and all-gathers what every rank has.

    >>> ddp.register_comm_hook(None, q7x2.comm_hooks.quantization_pertensor_hook)

    Args:
        process_group: The ranks to average over. None: the default group.
        bucket: The gradients, from DDP.

    Returns:
        A future of the bucket's mean.
    """
    return quantization_perchannel_hook(process_group, bucket, bucket_size=1024)


def quantization_perchannel_hook(
    process_group: ProcessGroup | None, bucket: GradBucket, bucket_size: int = 512
) -> torch.futures.Future[torch.Tensor]:
    """Gradients as 8-bit integers between the least and the largest of each ``bucket_size``.

    What is lost is lost, as with PyTorch's; :class:`q7x2.Quantize` keeps it.

    >>> ddp.register_comm_hook(None, q7x2.comm_hooks.quantization_perchannel_hook)

    Args:
        process_group: The ranks to average over. None: the default group.
        bucket: The gradients, from DDP.
        bucket_size: Elements that share a range: a power of two from 32 to 1024.

    Returns:
        A future of the bucket's mean.
    """
    options = Quantize(
        f"int8:g={bucket_size}:minmax", compress_vectors=True, use_error_feedback=False
    )
    return reduce_over(process_group, bucket, options)
