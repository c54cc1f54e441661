"""An operation as the reports of a job read it from a ledger."""

from __future__ import annotations

from typing import NamedTuple


class RecordedOperation(NamedTuple):
    """What is read of an operation: columns of the table, or ``_EXPRESSIONS``."""

    runtime: int
    pg: int
    operation: str
    internal: int
    plan: str | None
    codec: str | None
    bytes: int
    sent_network: int
    sent_memory: int
    error: str | None
    started_ns: int | None
    finished_ns: int
    predicted_ns: int | None
    waited_for: int | None
    waited_percent: int
    waited_ns: int
    copy_ns: int
    reduce_ns: int
    encode_ns: int
    decode_ns: int

    def phases(self) -> list[int]:
        """Nanoseconds of all phases but the last (``summary.PHASES``)."""
        return [self.waited_ns, self.copy_ns, self.reduce_ns, self.encode_ns, self.decode_ns]


_EXPRESSIONS = {"bytes": "MAX(input_bytes, output_bytes)"}
COLUMNS = [_EXPRESSIONS.get(name, name) for name in RecordedOperation._fields]
