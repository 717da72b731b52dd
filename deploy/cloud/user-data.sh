#!/bin/bash
# Prints the user data of a node: cloud-init.yaml with the settings of a job in it.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -r "$1" ]; then
  echo "usage: $0 FILE.env    (start from aws/job.env, gcp/job.env or azure/job.env)" >&2
  exit 2
fi
if left=$(grep -n '<[A-Z_]*>' "$1"); then
  echo "$1 has places to fill in: $(echo "$left" | tr '\n' ' ')" >&2
  exit 2
fi
indented=$(sed 's/^\(.\)/      \1/' "$1")
while IFS= read -r line; do
  if [ "$line" = "      @ENV@" ]; then
    printf '%s\n' "$indented"
  else
    printf '%s\n' "$line"
  fi
done <"$(dirname "$0")/cloud-init.yaml"
