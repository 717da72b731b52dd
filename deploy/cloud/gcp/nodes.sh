#!/bin/bash
# Spot machines, each of them one node of an elastic-launch job: an instance template and a managed group, which
# replaces each machine that was preempted, as soon as there is capacity.
# ZONE, NETWORK, MACHINE and GPUS (type=nvidia-l4,count=1) may be set.
set -euo pipefail
if [ $# -ne 3 ]; then
  echo "usage: $0 NAME NODES FILE.env" >&2
  exit 2
fi
ZONE=${ZONE:-us-central1-a}
NETWORK=${NETWORK:-default}
MACHINE=${MACHINE:-e2-standard-4}
here=$(cd "$(dirname "$0")" && pwd)
data=$(mktemp)
trap 'rm -f "$data"' EXIT
"$here/../user-data.sh" "$3" >"$data"

gpus=()
if [ -n "${GPUS:-}" ]; then
  gpus=(--accelerator="$GPUS")
fi
gcloud compute instance-templates create "$1" --machine-type="$MACHINE" --network="$NETWORK" \
  --provisioning-model=SPOT --instance-termination-action=DELETE --maintenance-policy=TERMINATE \
  --image-family=ubuntu-2404-lts-amd64 --image-project=ubuntu-os-cloud --boot-disk-size=60GB \
  --metadata-from-file=user-data="$data" "${gpus[@]}"
gcloud compute instance-groups managed create "$1" --zone="$ZONE" --template="$1" --size="$2"
