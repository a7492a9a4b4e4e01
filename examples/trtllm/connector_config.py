"""TensorRT-LLM with SemBlend's connector: exact prefixes work natively, nothing else changes.

    export SEMBLEND_TRTLLM_CONFIG='{"mode": "exact_prefix"}'
    python examples/trtllm/connector_config.py MODEL

Needs a machine with TensorRT-LLM; see docs/trtllm.md for what was run and what was not.
"""

import os
import sys

from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.llmapi.llm_args import KvCacheConnectorConfig

from semblend.integration.trtllm.options import forward

forward(os.environ)  # otherwise the LLM's processes get no SEMBLEND_* variables
kv_connector_config = KvCacheConnectorConfig(
    connector_module="semblend.integration.trtllm.connector",
    connector_scheduler_class="SemBlendKvConnectorScheduler",
    connector_worker_class="SemBlendKvConnectorWorker",
)
llm = LLM(model=sys.argv[1], kv_connector_config=kv_connector_config)
print(llm.generate("The town archive holds", SamplingParams(max_tokens=16)).outputs[0].text)
