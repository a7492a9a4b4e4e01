#!/bin/sh
# trtllm-serve with SemBlend's connector; all flags except --semblend-* go to the server.
# Needs a machine with TensorRT-LLM; see docs/trtllm.md for what was run and what was not.
exec semblend-trtllm "${1:?a model}" --host 127.0.0.1 --port 8000 \
  --semblend-mode exact_prefix --semblend-audit-path trtllm-audit.jsonl
