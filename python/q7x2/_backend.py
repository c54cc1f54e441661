"""Makes the q7x2 backend of a process group."""

from __future__ import annotations

import os
from typing import Any


def create_backend(given: Any, options: Any, *, in_job: bool = False) -> Any:
    """Return a backend, which the ledger follows if ``Q7X2_LEDGER`` asks for one.

    The first call of a process warns of variables that q7x2 does not know.

    Args:
        given: torch's ``_DistributedBackendOptions``.
        options: A ``q7x2.Options``, or None.
        in_job: The group's ranks have ranks in the job, and may fail with it.

    Raises:
        ImportError: ``Q7X2_OPENTELEMETRY`` asks for a package that is missing.
        ValueError: An option, or a variable of the ledger or of OpenTelemetry, has a bad value.
        torch.distributed.DistBackendError: The group could not be made.
    """
    from q7x2._core.extension import load

    native = load()  # first: it reads the file that may hold the variables
    if _has_telemetry():
        from q7x2.observe.opentelemetry import export_to_opentelemetry

        export_to_opentelemetry()
    directory = os.environ.get("Q7X2_LEDGER", "")
    from q7x2._core.variables import warn_of_unknown  # load() has imported it

    warn_of_unknown()
    if not directory:
        return native.create_backend(given, options, in_job=in_job)

    from q7x2.ledger import writer as ledger_writer

    ledger = ledger_writer.of_process(directory)
    # A group that is made later, by reconfigure, is followed as well.
    has_members = not getattr(given, "enable_reconfigure", False)
    if has_members:
        ledger.announce(given)
    backend = native.create_backend(given, options, in_job=in_job)
    if has_members:
        ledger.opened(backend, given)
    return backend


def _has_telemetry() -> bool:
    value = os.environ.get("Q7X2_OPENTELEMETRY", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"Q7X2_OPENTELEMETRY: expected 0 or 1, got {value!r}")
    return value == "1"
