"""Deadlines of groups that tests make."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

# The timeout of groups whose calls must end by themselves, in seconds. No test takes so long: its
# ranks would be killed before. So a call that ends has not waited for its timeout.
NEVER = 600.0


def shorten_timeout(seconds: float, group: dist.ProcessGroup | None = None) -> None:
    """Let later calls of a group, by default the default one, end after so long.

    A group that is made with a short timeout may not be complete in time on a busy machine. Gloo's
    timeout cannot be changed.
    """
    if dist.get_backend(group) != "gloo":
        (group or dist.group.WORLD).set_timeout(timedelta(seconds=seconds))
