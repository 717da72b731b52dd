#!/bin/bash
# The permanent part of a cluster of spot machines: a network with a NAT gateway, etcd on an on-demand machine, and a
# shared directory (Azure Files
# over NFS). Prints the two lines of job.env that name them. Needs az, logged in; GROUP and REGION may be set.
set -euo pipefail
if [ $# -ne 1 ]; then
  echo "usage: $0 STORAGE_ACCOUNT    (a globally unique name: 3 to 24 lower-case letters and digits)" >&2
  exit 2
fi
GROUP=${GROUP:-elastic}
REGION=${REGION:-westeurope}
here=$(cd "$(dirname "$0")" && pwd)

az group create --name "$GROUP" --location "$REGION" --output none
az network vnet create --resource-group "$GROUP" --name elastic --address-prefixes 10.20.0.0/16 \
  --subnet-name nodes --subnet-prefixes 10.20.0.0/20 --output none
# The NAT gateway, for apt and pip: machines of a new network have no access to the internet, and no public address
# here.
az network public-ip create --resource-group "$GROUP" --name elastic-out --sku Standard --output none
az network nat gateway create --resource-group "$GROUP" --name elastic-out \
  --public-ip-addresses elastic-out --output none
az network vnet subnet update --resource-group "$GROUP" --vnet-name elastic --name nodes \
  --nat-gateway elastic-out --service-endpoints Microsoft.Storage --output none
az vm create --resource-group "$GROUP" --name elastic-etcd --image Ubuntu2404 --size Standard_B2s \
  --vnet-name elastic --subnet nodes --public-ip-address "" --nsg "" \
  --admin-username azureuser --generate-ssh-keys --custom-data "$here/../etcd.yaml" --output none
az storage account create --resource-group "$GROUP" --name "$1" --kind FileStorage --sku Premium_LRS \
  --https-only false --default-action Deny --output none
az storage account network-rule add --resource-group "$GROUP" --account-name "$1" \
  --vnet-name elastic --subnet nodes --output none
az storage share-rm create --resource-group "$GROUP" --storage-account "$1" --name shared \
  --enabled-protocols NFS --root-squash NoRootSquash --quota 100 --output none

etcd=$(az vm show --resource-group "$GROUP" --name elastic-etcd --show-details --query privateIps --output tsv)
echo "ELASTIC_ETCD=\"$etcd:2379\""
echo "SHARED=\"$1.file.core.windows.net:/$1/shared\""
