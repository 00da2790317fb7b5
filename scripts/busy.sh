#!/usr/bin/env bash
# Usage: scripts/busy.sh RUNS LOOPS COMMAND...
# Runs COMMAND RUNS times in a row beside LOOPS busy loops of equal priority, and stops at the first
# failure. The loops end with this script, also when it is interrupted.
set -euo pipefail
runs=$1 loops=$2
shift 2
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
for ((n = 0; n < loops; n++)); do
  (while :; do :; done) &
  pids+=($!)
done
for ((run = 1; run <= runs; run++)); do
  started=$SECONDS
  "$@" || { echo "busy: run $run of $runs failed after $((SECONDS - started)) s, load $(cut -d' ' -f1-3 /proc/loadavg)"; exit 1; }
  echo "busy: run $run of $runs passed in $((SECONDS - started)) s, load $(cut -d' ' -f1-3 /proc/loadavg)"
done
