#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A job of Slurm's that is queued again when it is preempted, with as many nodes as it gets: sbatch --nodes=1-4 slurm.sh
#SBATCH --job-name=elastic
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
MOUNT=${MOUNT:-/mnt/scalai}     # mounted on each node, by fstab or scalai@.service; nodes of one cluster: docs/cluster.md
STEPS=${STEPS:-1000}
RANKS_PER_NODE=${RANKS_PER_NODE:-1}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --kill-on-bad-exit=1 torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$RANKS_PER_NODE" \
	--rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" --rdzv-backend=c10d --rdzv-endpoint="$head:29400" \
	"${EXAMPLES:-examples}/elastic.py" "$MOUNT" elastic "$STEPS"
