#!/bin/bash
# The permanent part of a cluster of spot machines: etcd on an on-demand machine, and a shared directory (Filestore).
# Prints the two lines of job.env that name them. Needs gcloud with a project; ZONE and NETWORK may be set.
set -euo pipefail
ZONE=${ZONE:-us-central1-a}
NETWORK=${NETWORK:-default}
here=$(cd "$(dirname "$0")" && pwd)

gcloud compute instances create elastic-etcd --zone="$ZONE" --network="$NETWORK" --machine-type=e2-small \
  --image-family=ubuntu-2404-lts-amd64 --image-project=ubuntu-os-cloud \
  --metadata-from-file=user-data="$here/../etcd.yaml"
gcloud filestore instances create elastic-shared --zone="$ZONE" --tier=BASIC_HDD \
  --file-share=name=shared,capacity=1TB --network=name="$NETWORK"

etcd=$(gcloud compute instances describe elastic-etcd --zone="$ZONE" --format='value(networkInterfaces[0].networkIP)')
folder=$(gcloud filestore instances describe elastic-shared --zone="$ZONE" --format='value(networks[0].ipAddresses[0])')
echo "ELASTIC_ETCD=\"$etcd:2379\""
echo "SHARED=\"$folder:/shared\""
