#!/usr/bin/env bash
# vLLM with SemBlend on a laptop's CPU, with the bundled model and its quality certificate.
#   examples/vllm/serve_cpu.sh [vLLM's own options]
# Without VLLM_CPU_KVCACHE_SPACE (GiB) vLLM asks for most of the machine's memory and may not start.
set -euo pipefail
here="$(dirname "$0")"
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
# float32: the number format the certificate was measured in.
exec "$here/serve.sh" cpu "$here/../../models/semblend-reference-27m" \
    --served-model-name reference --dtype float32 --enforce-eager --max-model-len 8192 "$@"
