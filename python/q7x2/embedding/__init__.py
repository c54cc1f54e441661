"""Embedding tables whose rows are divided among the ranks; only the rows that a step uses travel.

docs/embedding.md has examples and measurements.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "clip": ("clip_grad_norm_",),
    "sharded": ("EmbeddingStats", "ShardedEmbedding"),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.embedding.clip import clip_grad_norm_ as clip_grad_norm_
    from q7x2.embedding.sharded import EmbeddingStats as EmbeddingStats
    from q7x2.embedding.sharded import ShardedEmbedding as ShardedEmbedding
