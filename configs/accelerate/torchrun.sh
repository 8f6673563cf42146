#!/usr/bin/env bash
# Train with several processes: on this machine alone, or on every node of a group (run the same line on all of them).
#   configs/accelerate/torchrun.sh image/qwen3vl_4b_refcoco_80gb steps=100
# Change these three lines, or set them outside:
NODES="${NODES:-1}"                  # machines
PROCESSES="${PROCESSES:-8}"          # GPUs of each machine; on a machine without GPUs, 2 tries it out
MAIN="${MAIN:-localhost:29500}"      # name and a free port of the first machine, the same on all

set -euo pipefail
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"
exec torchrun --nnodes "$NODES" --nproc_per_node "$PROCESSES" --rdzv_backend c10d --rdzv_endpoint "$MAIN" \
    --rdzv_id mmrl -m mmrl train "$@"
