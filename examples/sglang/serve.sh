#!/usr/bin/env bash
# SGLang with SemBlend. Without a quality certificate for the model, spans are found and reported
# but not loaded; MODE=segmented_experimental loads them anyway.
#   examples/sglang/serve.sh Qwen/Qwen2.5-7B-Instruct [SGLang's own flags]
set -euo pipefail

model="$1"
shift
semblend doctor sglang -- --model-path "$model" "$@"
exec semblend-sglang --semblend-mode "${MODE:-segmented}" \
    --model-path "$model" --host 0.0.0.0 --port 8000 --enable-metrics --enable-cache-report "$@"
