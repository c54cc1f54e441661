"""What was measured of hosts and network: read from files, and shown to a person.

docs/fabric.md says what a Fabric has.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "files": ("FabricError", "load", "read"),
    "group": ("of_group",),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.fabric.files import FabricError as FabricError
    from q7x2.fabric.files import load as load
    from q7x2.fabric.files import read as read
    from q7x2.fabric.group import of_group as of_group
