#!/bin/bash
# Spot machines, each of them one node of an elastic-launch job: an instance template and a managed group, which
# starts another machine for each that was taken back, as soon as there is one.
# ZONE, NETWORK, MACHINE and CARDS (type=nvidia-l4,count=1) may be set.
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

cards=()
if [ -n "${CARDS:-}" ]; then
  cards=(--accelerator="$CARDS")
fi
gcloud compute instance-templates create "$1" --machine-type="$MACHINE" --network="$NETWORK" \
  --provisioning-model=SPOT --instance-termination-action=DELETE --maintenance-policy=TERMINATE \
  --image-family=ubuntu-2404-lts-amd64 --image-project=ubuntu-os-cloud --boot-disk-size=60GB \
  --metadata-from-file=user-data="$data" "${cards[@]}"
gcloud compute instance-groups managed create "$1" --zone="$ZONE" --template="$1" --size="$2"
