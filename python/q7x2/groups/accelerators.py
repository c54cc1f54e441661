"""``register_accelerator``: collectives on tensors of an accelerator that is not CUDA."""

from __future__ import annotations

from typing import Any

_registered: list[str] = []


def register_accelerator(
    device_type: str, stream_calls: Any, codec_kernels: Any | None = None, memory: str = ""
) -> None:
    """Let groups that are made from now on take tensors of an accelerator other than CUDA.

    torch must know the device type already (``torch.utils.rename_privateuse1_backend``). Call it
    once per process, before ``init_process_group``.

    >>> q7x2.groups.register_accelerator("npu", npu_extension.q7x2_stream_calls())

    Args:
        device_type: As in ``torch.device``, without an index.
        stream_calls: A capsule called ``q7x2.stream_calls``. It points to a
            ``Q7x2StreamCalls`` (csrc/device/stream_calls.h), which must stay. docs/devices.md says
            what a device must offer.
        codec_kernels: A capsule called ``q7x2.codec_kernels``. It points to a
            ``q7x2::CodecKernels`` (csrc/kernels/cuda/codec_kernels.h), which must stay, and was
            compiled with the header of this version. ``None``: codecs run on the CPU.
        memory: ``"cuda"`` if UCX may take its memory for that of CUDA's driver. Then ranks of a
            host can exchange tensors from device to device. Empty: they pass through the host.

    Raises:
        ValueError: A struct is incomplete, the device type has others already, or ``memory`` is
            another text.
        TypeError: A capsule has another name.
    """
    import torch
    import torch.distributed as dist

    from q7x2._autoload import register
    from q7x2._core.extension import load

    name = torch.device(device_type).type
    load().register_accelerator(name, stream_calls, codec_kernels, memory)
    register()
    served = dist.Backend.backend_capability["q7x2"]
    if name not in served:
        served.append(name)
        _registered.append(name)


def device_types() -> list[str]:
    """Return the types of device whose tensors q7x2 takes."""
    return ["cpu", "cuda", *_registered]
