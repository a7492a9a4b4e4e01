"""One real vLLM worker of a fleet, spoken to by lines: prompts in, what happened to them out.

Runs in vLLM's own environment:  python -m tests.fleet.vllm_worker MODEL FOLDER
FOLDER is where its K/V events are published (events, replay).

A line is a JSON object: `tokens`, and optionally `hints` (what a request says to SemBlend) and
`salt`; or `held`, prompts and salts of which vLLM's own prefix cache says how much it holds; or
`clear`, which empties that cache.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.update(
    {
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "SEMBLEND_MEASURE_SPEED": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
)


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.config import KVEventsConfig, KVTransferConfig
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    from semblend.integration.scheduler import fleet_donors

    fleet_donors._LEAST_WAIT_S = 20.0  # A busy machine is no slow store.
    config = KVTransferConfig(
        kv_connector="SemBlendVllmConnector",
        kv_connector_module_path="semblend_vllm_connector.connector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "mode": "segmented_experimental",
            "recompute_policy": "none",
            "min_prompt_tokens": 64,
        },
    )
    events = KVEventsConfig(
        enable_kv_cache_events=True,
        publisher="zmq",
        endpoint=f"ipc://{sys.argv[2]}/events",
        replay_endpoint=f"ipc://{sys.argv[2]}/replay",
    )
    llm = LLM(
        model=sys.argv[1],
        enforce_eager=True,
        dtype="float32",
        max_model_len=2048,
        kv_cache_memory_bytes=36 << 20,  # 96 blocks: three prompts of a test, not four
        block_size=32,
        worker_cls="semblend.integration.vllm.worker.SemBlendWorker",
        kv_transfer_config=config,
        kv_events_config=events,
        disable_log_stats=False,
    )
    core = llm.llm_engine.engine_core.engine_core
    say({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        if "held" in asked:
            say({"held": [held(core, *each) for each in asked["held"]]})
            continue
        if "clear" in asked:
            assert core.scheduler.reset_prefix_cache()
            core.step_fn()
            say({})
            continue
        prompt = {"prompt_token_ids": asked["tokens"]}
        if "salt" in asked:
            prompt["cache_salt"] = asked["salt"]
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=6,
            ignore_eos=True,
            extra_args={"kv_transfer_params": {"semblend": asked.get("hints", {})}},
        )
        (output,) = llm.generate([prompt], sampling, use_tqdm=False)
        captures = get_kv_transfer_group().worker_side.captures
        if captures is not None:
            captures.wait()
        core.step_fn()
        while core.scheduler.has_requests():
            core.step_fn()  # as an engine that goes on: donors are stored, shared and announced
        fleet = core.scheduler.connector.fleet.donors
        said = (output.kv_transfer_params or {}).get("semblend", {})
        say(
            {
                "cached": int(output.num_cached_tokens or 0),
                "tokens": list(output.outputs[0].token_ids),
                "semblend": said,
                "fetched": 0 if fleet is None else fleet.fetched,
                "failed": 0 if fleet is None else fleet.failed,
            }
        )
    llm.llm_engine.engine_core.shutdown()


def held(core: Any, tokens: list[int], salt: str | None) -> int:
    """Tokens at a prompt's beginning that a request with it would find cached."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    request = Request(
        request_id="oracle",
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        cache_salt=salt,
        block_hasher=core.request_block_hasher,
    )
    coordinator = core.scheduler.kv_cache_manager.coordinator
    return int(coordinator.find_longest_cache_hit(request.block_hashes, len(tokens))[1])


def say(record: dict[str, Any]) -> None:
    print("@" + json.dumps(record, default=str), flush=True)


if __name__ == "__main__":
    main()
