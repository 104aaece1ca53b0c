#!/bin/bash
# What a GPU node gives CrossPipe, as one table in under five minutes:
#   sbatch --gpus=2 slurm/gpu_check.sh          (account and partition as your site wants them)
#   bash slurm/gpu_check.sh                     (on a machine with a GPU)
# PYTHON is the interpreter of the environment with CrossPipe (default: the first python3 in PATH).
#SBATCH --job-name=gpu-check
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=00:10:00
set -eu
# Under Slurm this file is a copy elsewhere: then the checkout is where it was submitted from.
here=${SLURM_SUBMIT_DIR:+$SLURM_SUBMIT_DIR/slurm}
here=${here:-$(dirname "$(readlink -f "$0")")}
[ -f "$here/gpu_check.py" ] || { echo "gpu_check: $here/gpu_check.py is not there; submit from the checkout" >&2; exit 2; }
# spinning kernels must not share a hardware queue with the work they wait beside
export CUDA_DEVICE_MAX_CONNECTIONS=32
# NCCL's kernels must not start in the order of their launch: receives are posted ahead of sends
unset NCCL_LAUNCH_ORDER_IMPLICIT
# ranks started here see all devices and find each other on this host
export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-lo}"
exec timeout 300 "${PYTHON:-python3}" "$here/gpu_check.py"
