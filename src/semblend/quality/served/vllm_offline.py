"""vLLM in this process, with the connector, asked by the requests its users send."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from semblend import __version__
from semblend.core.errors import MissingExtraError
from semblend.core.namespace import NONE
from semblend.core.tokens import TokenArray
from semblend.quality.seam import MeasuredFacts
from semblend.quality.served.asking import TOP, ServedReply, ServedRequest
from semblend.quality.served.comparing import METHOD

ENVIRONMENT = {
    # The engine's steps are taken here: captures have ended when `settle` returns.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "SEMBLEND_SHADOW_RATE": "0",
    # What reuse does to answers is measured, whether or not it pays here.
    "SEMBLEND_MEASURE_SPEED": "0",
}
BATCH = 8
CAPTURES = 64
"""Prompts that may wait to be kept: four donors of every item of a batch."""
LEFT_OUT = ("the share of the price that a policy's probe computes",)
MIN_PROMPT_TOKENS = 64


class VllmOffline:
    """One `LLM` and its connector, in the mode in which requests name policies."""

    forgets_prefixes = True
    batch = BATCH

    def __init__(
        self,
        model: str,
        *,
        identify: Callable[[], str],
        asked_at_load: Callable[[Any], Mapping[str, str]],
        dtype: str = "auto",
        policy: str = "none",
        tables: Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Start it.

        Parameters
        ----------
        identify
            Tells the content hash of the weights; asked once vLLM has fetched them.
        asked_at_load
            Tells from the VllmConfig what the connector will compare with the certificate.
        policy
            Of requests that name none. One that shifts depths has the engine read the table.
        tables
            Folder with the model's table of depth drift.
        options
            More arguments of `vllm.LLM`: what the model will be served with.
        """
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if tables is not None:
            os.environ["SEMBLEND_CERTIFICATE_DIR"] = str(tables)
        try:
            vllm = import_module("vllm")
            transfer = import_module("vllm.config").KVTransferConfig
        except ImportError as error:
            raise MissingExtraError(
                package="vllm", extra="vllm", purpose="measuring inside vLLM"
            ) from error
        self._sampling = vllm.SamplingParams
        self._llm: Any = vllm.LLM(
            model=model,
            dtype=dtype,
            max_logprobs=TOP,
            worker_cls="semblend.integration.vllm.worker.SemBlendWorker",
            kv_transfer_config=transfer(
                kv_connector="SemBlendConnectorV1",
                kv_connector_module_path="semblend.integration.vllm.connector_v1",
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
                kv_connector_extra_config={
                    "mode": "segmented_experimental",
                    "recompute_policy": policy,
                    "min_prompt_tokens": MIN_PROMPT_TOKENS,
                    "capture_queue": CAPTURES,
                },
            ),
            **(options or {}),
        )
        self.tokenizer: Any = self._llm.get_tokenizer()
        self._core: Any = self._llm.llm_engine.engine_core.engine_core
        self.most_tokens = int(self._llm.llm_engine.vllm_config.model_config.max_model_len)
        config = self._llm.llm_engine.vllm_config
        self.facts = _facts(config, model, identify(), vllm.__version__, asked_at_load(config))
        self.no_table = _no_table(config, self.facts)
        """Why there is no table of depth drift here; empty: there is one to measure."""

    def ask(self, questions: Sequence[ServedRequest]) -> list[ServedReply]:
        """All in one call: vLLM batches them as it does those of users."""
        prompts = [
            {"prompt_token_ids": question.tokens.tolist(), "cache_salt": question.salt}
            for question in questions
        ]
        sampling = [
            self._sampling(
                max_tokens=question.most,
                temperature=0.0,
                logprobs=TOP,
                extra_args={"kv_transfer_params": {"semblend": question.hints}},
            )
            for question in questions
        ]
        return [_reply(output) for output in self._llm.generate(prompts, sampling, use_tqdm=False)]

    def settle(self) -> None:
        """Take steps until every block that waits for its capture is free."""
        self._core.step_fn()
        while self._core.scheduler.has_requests():
            self._core.step_fn()

    def forget_prefixes(self) -> None:
        """vLLM's own prefix cache; donors stay."""
        self.settle()
        self._llm.reset_prefix_cache()

    def kv_of_donor(self, tokens: TokenArray) -> torch.Tensor | None:
        """K/V of a prompt that was kept, [layers, 2, tokens, heads, head_dim]; None: not kept.

        Each rank has a part of the heads.
        """
        parts = self._llm.collective_rpc("kv_of_donor", args=(tokens.tolist(),))
        if any(part is None for part in parts):
            return None
        # With more ranks than heads, neighbours hold the same one.
        heads = int(self._llm.llm_engine.vllm_config.model_config.get_total_num_kv_heads())
        return torch.cat(parts[:: max(1, len(parts) // heads)], dim=3)

    def close(self) -> None:
        """Make room for the next one."""
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm, self._core
        import_module("vllm.distributed.kv_transfer").ensure_kv_transfer_shutdown()
        import_module("vllm.distributed").cleanup_dist_env_and_memory()
        gc.collect()


def _no_table(config: Any, facts: MeasuredFacts) -> str:
    # The adapter uses tables only where a donor's K/V is the model's own, as it was computed.
    asked = facts.asked_at_load
    if asked["quantization"] != NONE or asked["kv_format"] != NONE:
        return "weights quantised at load or K/V of another format"
    if config.model_config.use_mla:
        return "latent K/V"
    return "a drafter" if facts.speculation != NONE else ""


def _reply(output: Any) -> ServedReply:
    (answer,) = output.outputs
    return ServedReply(
        tokens=tuple(str(token) for token in answer.token_ids),
        text=str(answer.text),
        top=tuple(
            {str(token): float(entry.logprob) for token, entry in place.items()}
            for place in answer.logprobs or ()
        ),
        said=(output.kv_transfer_params or {}).get("semblend", {}),
    )


def _facts(
    config: Any, model: str, fingerprint: str, version: str, asked: Mapping[str, str]
) -> MeasuredFacts:
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    device = str(config.device_config.device_type)
    return MeasuredFacts(
        engine="vllm",
        version=version,
        model=model,
        fingerprint=fingerprint,
        dtype=dtype,
        quantisation=str(config.model_config.quantization or "none"),
        architecture=str(config.model_config.architecture),
        kv_format=dtype if asked["kv_format"] == NONE else asked["kv_format"],
        speculation=asked["speculation"],
        asked_at_load=asked,
        hardware=torch.cuda.get_device_name() if device == "cuda" else device,
        versions={"torch": torch.__version__, "connector": __version__},
        method=METHOD,
        left_out=LEFT_OUT,
    )
