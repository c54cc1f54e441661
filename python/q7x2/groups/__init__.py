"""Process groups: how they are made, described, and made anew.

docs/recovery.md says how a job goes on after a failure.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "accelerators": ("register_accelerator",),
    "description": ("Description", "describe"),
    "process_group": ("ProcessGroup",),
    "reconfiguration": ("reconfigure", "reconfigure_handle", "reconfigure_handles"),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.groups.accelerators import register_accelerator as register_accelerator
    from q7x2.groups.description import Description as Description
    from q7x2.groups.description import describe as describe
    from q7x2.groups.process_group import ProcessGroup as ProcessGroup
    from q7x2.groups.reconfiguration import reconfigure as reconfigure
    from q7x2.groups.reconfiguration import reconfigure_handle as reconfigure_handle
    from q7x2.groups.reconfiguration import reconfigure_handles as reconfigure_handles
