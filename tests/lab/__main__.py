"""`python -m tests.lab`: see cli.py."""

import sys

from tests.lab import cli, command

sys.exit(command.run(cli.main, sys.argv[1:]))
