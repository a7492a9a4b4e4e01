#!/usr/bin/env bash
# Inside a private network namespace: a Mooncake master, one process that shares, one that reads.
#   mooncake_inside.sh MASTER PYTHON FOLDER
set -euo pipefail
ip link set lo up
name=$(printf 'ab%.0s' {1..32})
"$1" -port 50051 -metrics_port 9103 >"$3/master.log" 2>&1 &
master=$!
trap 'kill "$master" 2>/dev/null || true' EXIT
for _ in $(seq 100); do (exec 3<>/dev/tcp/127.0.0.1/50051) 2>/dev/null && break; sleep 0.1; done
mkfifo "$3/stop"
"$2" -m tests.fleet.store_child put mooncake:127.0.0.1:50051 "$name" <"$3/stop" >"$3/owner.log" 2>&1 &
owner=$!
exec 4>"$3/stop"
for _ in $(seq 300); do grep -q '^ready' "$3/owner.log" && break; sleep 0.1; done
grep -q '^ready' "$3/owner.log" || { cat "$3/owner.log"; exit 1; }
"$2" -m tests.fleet.store_child get mooncake:127.0.0.1:50051 "$name" "$3/got"
exec 4>&-
wait "$owner" || true
