"""How an outer gradient is written to bytes for a quorum, and read from them.

Every rank reads the messages of all ranks, so what one rank has lost by the codec is the same for
all, and goes to its own residual::

    | seconds per step, float64 | lengths, int32 | messages of a codec | whole parameters, float32 |
"""

from __future__ import annotations

import torch
from torch import Tensor

from q7x2._core.extension import load
from q7x2._core.random_keys import key_of

_BLOCK = 65536  # elements of a message, at most


class OuterBytes:
    """The format of one model's outer gradients.

    Args:
        codec: A codec's name; None: all is float32.
        coded: Elements that go through the codec, the first ones of the vector.
        numel: Number of elements of the vector.
        seed: The seed of the codec's random numbers.
    """

    def __init__(self, codec: str | None, coded: int, numel: int, seed: int) -> None:
        self._codec = load().Codec(codec) if codec is not None and coded else None
        self._coded, self._numel, self._seed = (coded if self._codec else 0), numel, seed
        self._block = max(1, min(_BLOCK, self._coded))
        self._blocks = -(-self._coded // self._block)
        self._most = self._codec.max_bytes(self._block) if self._codec else 0

    @property
    def lengths(self) -> tuple[int, int]:
        """The least and the greatest number of bytes."""
        fixed = 8 + 4 * self._blocks + 4 * (self._numel - self._coded)
        return fixed, fixed + self._blocks * self._most

    def write(
        self, values: Tensor, residual: Tensor | None, seconds: float, step: int, rank: int
    ) -> Tensor:
        """The bytes of a float32 vector, a vector of uint8.

        Args:
            residual: Float32, of the coded elements: is added to them, and then holds what was not
                sent.
            seconds: The time of one inner step.
            step: The number of the outer step.
        """
        parts = [torch.tensor([seconds], dtype=torch.float64).view(torch.uint8)]
        if self._codec is not None:
            messages = torch.empty(self._blocks * self._most, dtype=torch.uint8)
            lengths = self._codec.encode(
                values[: self._coded],
                messages,
                residual,
                block=self._block,
                shared_key=key_of(self._seed, step),
                rounding_key=key_of(self._seed, step, rank),
            )
            parts.append(torch.tensor(lengths, dtype=torch.int32).view(torch.uint8))
            places = range(0, len(messages), self._most)
            parts += [messages[at : at + n] for at, n in zip(places, lengths, strict=True)]
        parts.append(values[self._coded :].contiguous().view(torch.uint8))
        return torch.cat(parts)

    def read(self, data: Tensor, step: int) -> tuple[Tensor, float]:
        """The vector, float32, and the time of one inner step on its rank.

        Raises RuntimeError if the lengths in it do not add up to its own.
        """
        seconds = float(data[:8].clone().view(torch.float64))
        values, offset = torch.zeros(self._numel), 8 + 4 * self._blocks
        lengths = data[8:offset].clone().view(torch.int32).tolist()
        whole = 4 * (self._numel - self._coded)
        is_right = all(0 <= length <= self._most for length in lengths)
        if not is_right or offset + sum(lengths) + whole != data.numel():
            raise RuntimeError(
                f"an outer gradient of {data.numel()} bytes has messages of {lengths} bytes"
            )
        if self._codec is not None:
            messages = torch.zeros(self._blocks * self._most, dtype=torch.uint8)
            for index, length in enumerate(lengths):
                at = index * self._most
                messages[at : at + length] = data[offset : offset + length]
                offset += length
            key = key_of(self._seed, step)
            out = values[: self._coded]
            self._codec.decode(messages, lengths, out, block=self._block, shared_key=key)
        values[self._coded :] = data[offset:].clone().view(torch.float32)
        return values, seconds
