#!/usr/bin/env bash
# A fleet on this machine: a log, two workers and a gateway. Ctrl-C stops everything.
#   examples/fleet/two_workers.sh [MODEL]
# Then, in another terminal:  python examples/fleet/where.py http://127.0.0.1:8080
set -euo pipefail

model="${1:-models/semblend-reference-27m}"
export SEMBLEND_NAMESPACE_SECRET="${SEMBLEND_NAMESPACE_SECRET:-$(openssl rand -hex 32)}"
export SEMBLEND_NATS_URL=nats://127.0.0.1:4222
data="$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$data"' EXIT

nats-server -a 127.0.0.1 -p 4222 -js -sd "$data" &
SEMBLEND_WORKER_ID=a semblend serve "$model" --port 8001 &
SEMBLEND_WORKER_ID=b semblend serve "$model" --port 8002 &
semblend route "$model" --port 8080 --prefill-us-per-token 1000 \
    --worker a=http://127.0.0.1:8001 --worker b=http://127.0.0.1:8002 &
wait -n
