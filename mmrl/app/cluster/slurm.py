"""The batch script of a run on several machines: Slurm starts `mmrl launch` once on each."""

import shlex
from collections.abc import Sequence

from mmrl.app.config.cluster import ClusterConfig

SCRIPT = """#!/usr/bin/env bash
# {nodes} node(s), {trainers} trainer(s), {engines} engine(s), {rewards} reward server(s):  sbatch FILE
# Add your partition and account, and change the time:
#SBATCH --nodes={nodes}
{gpus}#SBATCH --ntasks-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --job-name=mmrl
#SBATCH --output=%x-%j.log

set -euo pipefail
fail() {{ echo "mmrl: $1" >&2; exit 2; }}
[ -n "${{SLURM_JOB_NODELIST:-}}" ] || fail "this is a script for Slurm: start it with sbatch"
[ "$SLURM_JOB_NUM_NODES" = {nodes} ] || fail "the job has $SLURM_JOB_NUM_NODES node(s), and the config wants {nodes}"
command -v mmrl > /dev/null || fail "mmrl is not on PATH: activate its environment before sbatch, or in this script"

HOSTS="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)"
# Servers that other machines reach ask for a key, made for this job alone:
MMRL_REWARD_TOKEN="${{MMRL_REWARD_TOKEN:-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \\n')}}"
MMRL_ENGINE_TOKEN="${{MMRL_ENGINE_TOKEN:-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \\n')}}"
export HOSTS MMRL_REWARD_TOKEN MMRL_ENGINE_TOKEN

# One launch per node; one that fails ends the others.
exec srun --kill-on-bad-exit=1 bash -c 'exec mmrl launch "$@" --hosts "$HOSTS" --node "$SLURM_NODEID"' mmrl {words}
"""


def batch_script(cluster: ClusterConfig, words: Sequence[str]) -> str:
    """A script for `sbatch`, which checks where it runs first; `words` follow `mmrl launch` and give the config."""
    gpus = f"#SBATCH --gpus-per-node={cluster.gpus_per_node}\n" if cluster.gpus_per_node else ""
    return SCRIPT.format(
        nodes=cluster.nodes,
        gpus=gpus,
        trainers=cluster.trainers,
        engines=cluster.engines,
        rewards=len(cluster.rewards),
        words=shlex.join(words),
    )
