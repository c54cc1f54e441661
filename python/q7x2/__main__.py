"""``python -m q7x2`` is the ``q7x2`` command."""

import sys

from q7x2.cli import main

sys.exit(main())
