#!/usr/bin/env bash
# Serve a model with SemBlend in vLLM.
#   examples/vllm/serve.sh discovery    MODEL [vLLM's own options]
#   examples/vllm/serve.sh segmented_experimental MODEL ...
# The second needs our worker class, which computes holes in one extra pass.
set -euo pipefail
here="$(dirname "$0")"
config="$here/$1_kv_transfer_config.json"
model="$2"
shift 2

options=(--kv-transfer-config "$(cat "$config")")
if grep -q '"mode": "segmented' "$config" && ! grep -q '"execution": "staged"' "$config"; then
    options+=(--worker-cls semblend.integration.vllm.worker.SemBlendWorker)
fi
exec vllm serve "$model" --enable-prefix-caching "${options[@]}" "$@"
