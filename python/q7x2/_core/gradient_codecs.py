"""Names of codecs, as hooks and policies take them."""

_MEASURED_BEST = {"int4": "hadamard+int4:g=128"}


def measured_best(codec: str) -> str:
    """The full name of a codec of gradients."""
    return _MEASURED_BEST.get(codec, codec)
