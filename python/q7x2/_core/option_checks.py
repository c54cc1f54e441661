"""Checks of options when they are made, so that a mistake is reported where it was made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise ValueError unless ``value`` is an int of at least ``least`` and at most ``most``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
    if value < least:
        what = "not be negative" if least == 0 else f"be at least {least}"
        raise ValueError(f"{name} must {what}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")


def check_seed(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is an int from 0 to 2**64 - 1."""
    check_whole(name, value, 0, 2**64 - 1)


def check_positive(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a finite number greater than 0."""
    if not _is_number(value) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}")


def duration_of(name: str, value: Any) -> timedelta:
    """A timedelta, or a number of seconds, as a timedelta; ValueError unless it is positive."""
    if isinstance(value, timedelta):
        duration = value
    elif _is_number(value) and math.isfinite(value):
        duration = timedelta(seconds=value)
    else:
        raise ValueError(f"{name} must be a timedelta or seconds, got {value!r}")
    if duration <= timedelta(0):
        raise ValueError(f"{name} must be positive, got {duration.total_seconds():g} s")
    return duration


def check_factor(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a number of at least 0 and less than 1."""
    if not _is_number(value) or not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, got {value!r}")


def check_ratio(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a number greater than 0 and at most 1."""
    if not _is_number(value) or not 0 < value <= 1:
        raise ValueError(f"{name} must be more than 0 and at most 1, got {value!r}")


def check_flags(**flags: Any) -> None:
    """Raise ValueError unless all values are True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def check_strings(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a sequence of strings, and not one string."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_list or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} must be a tuple or a list of strings, got {value!r}")


def check_codec(name: str, value: Any) -> None:
    """Raise ValueError, which lists the codecs that exist, unless ``value`` is a codec's name."""
    from q7x2._core.extension import load

    try:
        load().Codec(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def check_edges(name: str, value: Any) -> None:
    """Raise ValueError, which lists the choices, unless ``value`` names edges for a codec."""
    from q7x2._core.extension import load

    try:
        load().check_edges(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise ValueError(str(error).replace("edges", name, 1)) from None


def compressor_kind(name: Any) -> Any:
    """The description of a compressor, from C++; ValueError, which lists all, for another name."""
    from q7x2._core.extension import load

    kinds = {kind.name: kind for kind in load().compressor_kinds()}
    if name not in kinds:
        raise ValueError(f"expected a compressor, one of {', '.join(kinds)}, got {name!r}")
    return kinds[name]


def check_fields(compressor: str, options: Any) -> None:
    """Raise ValueError unless fields of a dataclass fit the compressor's options of their name.

    None is what an option has by default.
    """
    mine = {field.name for field in dataclasses.fields(options)}
    for field in compressor_kind(compressor).fields:
        value = getattr(options, field.name) if field.name in mine else None
        if value is not None:
            field.check(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
