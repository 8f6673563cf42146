#!/usr/bin/env bash
# Train on Slurm, one torchrun per node:  sbatch configs/accelerate/slurm.sh image/qwen3vl_4b_refcoco_80gb steps=100
# Change these three lines, and add your partition and account:
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --job-name=mmrl
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --output=%x-%j.log

set -euo pipefail
export OMP_NUM_THREADS=4
MAIN="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 20000))"
PROCESSES="${SLURM_GPUS_ON_NODE:-8}"

# One failing process ends its torchrun, and that one ends the others.
srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc_per_node "$PROCESSES" \
    --rdzv_backend c10d --rdzv_endpoint "$MAIN" --rdzv_id "$SLURM_JOB_ID" -m mmrl train "$@"
