#!/bin/bash
# Prints the user data of a node: cloud-init.yaml with the settings of a job and the systemd unit in it.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -r "$1" ]; then
  echo "usage: $0 FILE.env    (start from aws/job.env, gcp/job.env or azure/job.env)" >&2
  exit 2
fi
if left=$(grep -n '<[A-Z_]*>' "$1"); then
  echo "$1 has placeholders to fill in: $(echo "$left" | tr '\n' ' ')" >&2
  exit 2
fi
here=$(dirname "$0")
# The lines of a file, indented; without comments and empty lines, because CloudFormation takes 4,096 characters.
lines() {
  local text
  text=$(sed -e '/^#/d' -e '/^$/d' -e 's/^/      /' "$1")
  printf '%s\n' "$text"
}
while IFS= read -r line; do
  case $line in
    "      @ENV@") lines "$1" ;;
    "      @UNIT@") lines "$here/../systemd/elastic-launch.service" ;;
    *) printf '%s\n' "$line" ;;
  esac
done <"$here/cloud-init.yaml"
