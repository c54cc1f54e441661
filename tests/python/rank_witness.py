"""A thread of a rank that writes the rank's flight record, also while the main thread hangs."""

from __future__ import annotations

import sys
import threading
from multiprocessing import connection


def start(pipe: connection.Connection) -> None:
    """Answer requests from ``pipe`` until it is closed.

    A request is a pair of a number and a path. The answer is the number and what went wrong, which
    is empty if the flight record is in the file ``path``.
    """
    threading.Thread(target=_serve, args=(pipe,), name="witness", daemon=True).start()


def _serve(pipe: connection.Connection) -> None:
    try:
        while True:
            number, path = pipe.recv()
            pipe.send((number, _record(path)))
    except (EOFError, OSError):
        return


def _record(path: str) -> str:
    # To load the extension here would change the rank, and there would be no group in it.
    if "q7x2._C" not in sys.modules:
        return "q7x2 is not loaded"
    import q7x2

    try:
        q7x2.dump(path)
    except Exception as error:
        return str(error)
    return ""
