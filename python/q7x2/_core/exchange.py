"""Values that the ranks of a group tell each other, as JSON whose parts are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from q7x2._core.json_values import MalformedMessageError, dumps, loads

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

_MOST_BYTES = 1 << 28


def gather(
    value: Any, kind: Any, group: ProcessGroup | None, device: torch.device | None = None
) -> list[Any]:
    """What each rank gives, by rank; a collective call.

    Args:
        value: This rank's, of type ``kind``.
        kind: See :mod:`q7x2._core.json_values`; the same on all ranks.
        group: None: the default group.
        device: Where the group's tensors must be. None: the CPU, if the group takes CPU tensors.

    Raises:
        MalformedMessageError: A rank has sent something else; it names the rank.
    """
    import torch
    import torch.distributed as dist

    device = device or _device_of(group)
    mine = torch.frombuffer(bytearray(dumps(value, kind).encode()), dtype=torch.uint8).to(device)
    count = torch.tensor([mine.numel()], dtype=torch.int64, device=device)
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, count, group)
    lengths = [int(each) for each in counts]
    for rank, length in enumerate(lengths):
        if not 0 < length <= _MOST_BYTES:
            raise MalformedMessageError(f"rank {rank} of the group sends {length} bytes")
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: mine.numel()] = mine
    texts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(texts, padded, group)
    return [
        _read(rank, text[:length], kind)
        for rank, (text, length) in enumerate(zip(texts, lengths, strict=True))
    ]


def broadcast(value: Any, kind: Any, group: ProcessGroup) -> Any:
    """What the first rank of the group gives, on all of them; a collective call.

    Args:
        value: The first rank's, of type ``kind``; not used on the others.
        kind: See :func:`gather`.

    Raises:
        MalformedMessageError: The first rank has sent something else.
    """
    return gather(value if group.rank() == 0 else None, kind | None, group)[0]


def _read(rank: int, text: torch.Tensor, kind: Any) -> Any:
    try:
        return loads(text.cpu().numpy().tobytes(), kind)
    except MalformedMessageError as error:
        raise MalformedMessageError(
            f"rank {rank} of the group sends what q7x2 cannot read: {error}"
        ) from None


def _device_of(group: ProcessGroup | None) -> torch.device:
    """Whose tensors the group takes: the CPU's, if it does."""
    import torch
    import torch.distributed as dist

    group = dist.group.WORLD if group is None else group
    kinds = {each.type for each in group._device_types} if group is not None else {"cpu"}
    if "cpu" in kinds or not kinds:
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    kind = min(kinds)
    if accelerator is not None and accelerator.type == kind:
        return torch.device(kind, torch.accelerator.current_device_index())
    return torch.device(kind)
