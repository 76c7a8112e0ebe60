#!/bin/bash
# Training on two machines without a scheduler: the same command on both, with the name of the first one.
#   bash deploy/two_machines.sh FIRST-HOST DATA /shared/RUN
# Both need the same version of Vitrail and of torch, the data under the same name (or an address of shards), a folder of
# the run that both see, and port 29400 of the first open to the second, with all ports above 1023 between the two.
set -euo pipefail

FIRST=${1:?the name of the first machine}
DATA=${2:?the data}
RUN=${3:?the folder of the run, which both machines see}
# Which network cards the ranks speak through, where a machine has several: eth0, ib0.
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-}
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-}
[ -n "$NCCL_SOCKET_IFNAME" ] || unset NCCL_SOCKET_IFNAME
[ -n "$GLOO_SOCKET_IFNAME" ] || unset GLOO_SOCKET_IFNAME
# Without it the second machine cannot join or come back: torchrun would not tell it where the others meet.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

torchrun --nnodes 1:2 --nproc-per-node "${RANKS:-gpu}" --max-restarts 100 \
    --rdzv-backend c10d --rdzv-endpoint "$FIRST:29400" --rdzv-id vitrail \
    -m vitrail pretrain "$DATA" --model "${MODEL:-ViT-L/16}" --recipe i1k --out "$RUN" --elastic \
    --set parallel=fsdp --set save_every=500
