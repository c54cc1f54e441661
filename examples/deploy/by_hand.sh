#!/bin/bash
# Starts this machine's part of a job. Run the same line on every machine:
#
#   by_hand.sh HEAD_HOST NODES RANKS_PER_NODE SCRIPT [ARGUMENTS]
#
# HEAD_HOST is the name or address of one of the machines, the same everywhere. Q7X2_SECRET may hold
# a text that only this job knows; it must be the same everywhere too.
set -euo pipefail
[ $# -ge 4 ] || { sed -n '4s/^# *//p' "$0" >&2; exit 2; }
head=$1 nodes=$2 ranks=$3
shift 3

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(($(nproc) > ranks ? $(nproc) / ranks : 1))}
exec torchrun --nnodes "$nodes" --nproc-per-node "$ranks" --rdzv-id "${JOB_ID:-q7x2}" \
  --rdzv-backend c10d --rdzv-endpoint "$head:${PORT:-29500}" "$@"
