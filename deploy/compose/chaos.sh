#!/usr/bin/env bash
# Injects faults into containers of the compose project and starts them again, until the job has ended or Ctrl-C.
#
#     chaos.sh [--rounds N] [--every SECONDS] [--faults "kill stop pause etcd"]
#
#   kill   SIGKILL to a node: power off         pause  a node is suspended for ten seconds, then continues
#   stop   SIGTERM to a node: it drains         etcd   SIGKILL to one member of etcd
set -euo pipefail

project=${COMPOSE_PROJECT_NAME:-elastic-launch}
rounds=0
every=10
faults="kill stop pause etcd"
while [ $# -gt 0 ]; do
  case $1 in
    --rounds | --every | --faults)
      [ $# -ge 2 ] || { echo "chaos.sh: $1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    *)
      echo "chaos.sh: no such argument: $1; see the first lines of this script" >&2
      exit 2
      ;;
  esac
done
for number in "$rounds" "$every"; do
  [[ $number =~ ^[0-9]+$ ]] || { echo "chaos.sh: $number is not a whole number" >&2; exit 2; }
done
read -ra faults <<<"$faults"
for fault in "${faults[@]}"; do
  case $fault in
    kill | stop | pause | etcd) ;;
    *) echo "chaos.sh: unknown fault $fault; choose kill, stop, pause or etcd" >&2; exit 2 ;;
  esac
done

# The names of the project's containers of a kind; further words are filters of docker ps.
containers() {
  local kind=$1
  shift
  docker ps "$@" --filter "label=com.docker.compose.project=$project" --format '{{.Label "com.docker.compose.service"}} {{.Names}}' |
    while read -r service name; do
      if [[ $service == "$kind"* ]]; then echo "$name"; fi
    done
}

say() { printf '%(%H:%M:%S)T %s\n' -1 "$*"; }

# The last affected container: it is started or resumed even when this script is interrupted.
struck=""
heal() {
  [ -n "$struck" ] || return 0
  if docker unpause "$struck" >/dev/null 2>&1; then
    say "resumed $struck"
  else
    docker start "$struck" >/dev/null
    say "started $struck again"
  fi
  struck=""
}
trap heal EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

round=0
while [ "$rounds" -eq 0 ] || [ "$round" -lt "$rounds" ]; do
  round=$((round + 1))
  fault=${faults[RANDOM % ${#faults[@]}]}
  if [ "$fault" = etcd ]; then kind=etcd-; else kind=node; fi
  mapfile -t running < <(containers "$kind")
  if [ "${#running[@]}" -eq 0 ]; then
    say "no container of $project named $kind… is running: nothing more to do"
    exit 0
  fi
  # A node that exited on its own, and not with 137 or 143, has completed or failed: so has the job.
  mapfile -t ended < <(containers node --all --filter exited=0 --filter exited=1)
  if [ "${#ended[@]}" -gt 0 ]; then
    say "${ended[0]} has exited on its own, so the job has ended"
    exit 0
  fi
  struck=${running[RANDOM % ${#running[@]}]}
  case $fault in
    kill | etcd) say "killing $struck"; docker kill "$struck" >/dev/null ;;
    stop) say "stopping $struck"; docker stop "$struck" >/dev/null ;;
    pause) say "pausing $struck"; docker pause "$struck" >/dev/null; sleep 10; heal ;;
  esac
  sleep "$every"
  heal
  sleep "$every"
done
