#!/bin/sh
# Installs q7x2 from a directory of wheels and shows what it finds here:
#
#   install.sh WHEELS [REQUIREMENT...]
#
# REQUIREMENT is q7x2 if none is given; "q7x2==0.1.0a1+torch2.13" is the wheel for torch 2.13. torch,
# UCX and rich come from PyPI. The Dockerfile
# runs this script, and so does `./dev wheel` in an empty virtual environment.
set -eu
[ $# -ge 1 ] || { echo "usage: install.sh WHEELS [REQUIREMENT...]" >&2; exit 2; }
wheels=$1
shift
[ $# -gt 0 ] || set -- q7x2
python -m pip install --no-cache-dir --find-links "$wheels" "$@"
q7x2 info
