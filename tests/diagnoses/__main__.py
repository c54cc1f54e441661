"""`python -m tests.diagnoses causes` and `python -m tests.diagnoses verdicts`."""

from __future__ import annotations

import sys

from tests.diagnoses import causes, verdicts
from tests.lab import command

MAINS = {"causes": causes.main, "verdicts": verdicts.main}

if __name__ == "__main__":
    if sys.argv[1:2] == [] or sys.argv[1] not in MAINS:
        sys.exit(f"usage: python -m tests.diagnoses {{{','.join(MAINS)}}} [--help]")
    sys.exit(command.run(MAINS[sys.argv[1]], sys.argv[2:]))
