"""Real vLLM engines in this process, with shorter words for tests."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.vllm_runners import Scheduling, engine_options
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

from semblend.core.tokens import TokenArray
from semblend.integration.vllm import namespaces
from tests.integration.models import MODELS, folder_of, reads_images
from tests.integration.vllm.probe import ProbeConnector

WORKER = "semblend.integration.vllm.worker.SemBlendWorker"
_SALTS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One finished request."""

    request_id: str
    tokens: tuple[int, ...]
    cached_tokens: int
    semblend: dict[str, Any]


def transfer_config(
    *, module: str = "tests.integration.vllm.probe", name: str = "ProbeConnector", **extra: Any
) -> KVTransferConfig:
    """What `--kv-transfer-config` would say."""
    return KVTransferConfig(
        kv_connector=name,
        kv_connector_module_path=module,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=extra,
    )


class Engine:
    """One LLM and its two connectors."""

    def __init__(self, model: str, *, engine: dict[str, Any] | None = None, **extra: Any) -> None:
        extra.setdefault("mode", "segmented_experimental")
        extra.setdefault("recompute_policy", "none")
        extra.setdefault("min_prompt_tokens", 64)
        settings: dict[str, Any] = {
            "enforce_eager": True,
            "dtype": "float32",
            "max_model_len": 2048,
            "kv_cache_memory_bytes": 32 << 20,
            "block_size": 32,
            "worker_cls": WORKER,
            "skip_tokenizer_init": not (model.startswith("reference") or reads_images(model)),
            "disable_log_stats": False,
            "kv_transfer_config": transfer_config(**extra),
        }
        if "TEST_VLLM_SCHEDULING" in os.environ:
            settings.update(engine_options(Scheduling(os.environ["TEST_VLLM_SCHEDULING"])))
        if MODELS.get(model, ("", {}))[1].get("sliding_window"):
            settings["disable_hybrid_kv_cache_manager"] = True
        if model == "glm-flash":
            # vLLM's rotary kernel for CPUs takes a row's last numbers for a row of their own.
            settings["compilation_config"] = {"custom_ops": ["-rotary_embedding"]}
        settings.update(engine or {})
        ProbeConnector.scheduler = ProbeConnector.worker = None
        with prefix_caching_everywhere():
            self.llm = LLM(model=folder_of(model), **settings)
        self.scheduler_connector = ProbeConnector.scheduler
        self.worker_connector = ProbeConnector.worker

    @property
    def scheduler(self) -> Any:
        return self.scheduler_connector.scheduler_side

    @property
    def rewrite(self) -> Any:
        """What every plan passes through; None leaves it as it is."""
        return self.scheduler_connector.rewriting

    @rewrite.setter
    def rewrite(self, rewriting: Any) -> None:
        self.scheduler_connector.rewriting = rewriting

    @property
    def worker(self) -> Any:
        """The worker's side, where there is one worker in this process."""
        return None if self.worker_connector is None else self.worker_connector.worker_side

    @property
    def core(self) -> Any:
        """vLLM's own scheduler."""
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    def run(self, tokens: TokenArray, **options: Any) -> Answer:
        """One request, alone, and everything it leaves to be stored."""
        (answer,) = self.run_all([tokens], **options)
        return answer

    def run_all(self, prompts: list[TokenArray], **options: Any) -> list[Answer]:
        """Several requests in one batch; `lora` is one adapter, or one or None for each."""
        salt = options.pop("salt", None)
        hints, lora = options.pop("hints", None), options.pop("lora", None)
        parameters = self.sampling(hints=hints, **options)
        inputs = [_prompt(prompt, salt) for prompt in prompts]
        outputs = self.llm.generate(inputs, parameters, use_tqdm=False, lora_request=lora)
        self.drain()
        return [_answer(output) for output in outputs]

    def cold(self, tokens: TokenArray, **options: Any) -> Answer:
        """The same request computed without any reuse, exact or not, and not kept."""
        return self.run(
            tokens,
            salt=f"cold-{next(_SALTS)}",
            hints={"reuse": False, "capture": False},
            **options,
        )

    def donate(self, tokens: TokenArray, **options: Any) -> Answer:
        """Run a prompt cold so that it becomes a donor; the prefix cache forgets it."""
        answer = self.run(tokens, hints={"reuse": False}, **options)
        self.forget_prefixes()
        return answer

    @staticmethod
    def sampling(*, hints: dict[str, Any] | None = None, **options: Any) -> SamplingParams:
        options.setdefault("max_tokens", 6)
        extra = None if hints is None else {"kv_transfer_params": {"semblend": hints}}
        return SamplingParams(
            temperature=0.0, ignore_eos=True, detokenize=False, extra_args=extra, **options
        )

    def drain(self) -> None:
        """Let captures finish and blocks be freed, as an engine that goes on would."""
        captures = getattr(self.worker, "captures", None)  # an unfit worker has none
        if captures is not None:
            captures.wait()
        core = self.llm.llm_engine.engine_core.engine_core
        core.step_fn()
        while core.scheduler.has_requests() or core.batch_queue:
            core.step_fn()

    def forget_prefixes(self) -> None:
        """Empty vLLM's own prefix cache; donors stay."""
        assert self.llm.reset_prefix_cache()

    def forget_donors(self) -> None:
        """Forget all donors, on both sides."""
        self.scheduler_connector.reset_cache()
        self.drain()

    def holds(self, tokens: TokenArray) -> bool:
        """Whether this very prompt is a donor, or on its way to be one."""
        contents = self.scheduler.planner._contents
        namespace = namespaces.of_request(self.scheduler.setup.namespace, None)
        free = contents.reserve("another", tokens, namespace)
        contents.release("another")
        return not free

    def kv(self, answer: Answer, start: int, end: int) -> torch.Tensor:
        """K/V of a request that just ran, [layers, 2, tokens, kv_heads, head_dim]."""
        return self.scheduler_connector.kv_of(answer.request_id, start, end).clone()

    def free_blocks(self) -> int:
        return int(self.core.kv_cache_manager.block_pool.get_num_free_blocks())

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        forget_engines()


def forget_engines() -> None:
    """Undo what a start leaves in this process, also one that was refused half-way."""
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    ensure_kv_transfer_shutdown()
    cleanup_dist_env_and_memory()
    gc.collect()


@contextmanager
def prefix_caching_everywhere() -> Iterator[None]:
    """vLLM switches prefix caching off for MLA on CPUs, for speed; promises about it are tested."""
    from vllm.platforms.cpu import CpuPlatform

    decide = CpuPlatform.check_and_update_config

    @staticmethod
    def decided(config: Any) -> None:
        wanted = config.cache_config.enable_prefix_caching
        decide(config)
        config.cache_config.enable_prefix_caching = wanted

    with patch.object(CpuPlatform, "check_and_update_config", decided):
        yield


class EngineFactory:
    """Makes engines one at a time: a second one closes the first."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._made_with: tuple[Any, ...] | None = None

    def make(self, model: str = "llama", **options: Any) -> Engine:
        made_with = (model, repr(sorted(options.items(), key=lambda item: item[0])))
        if self._engine is None or made_with != self._made_with:
            self.close()
            self._engine, self._made_with = Engine(model, **options), made_with
        self._engine.scheduler_connector.rewrite_load = None
        self._engine.rewrite = None
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        else:
            forget_engines()


def _prompt(tokens: TokenArray, salt: str | None) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt_token_ids": tokens.tolist()}
    if salt is not None:
        prompt["cache_salt"] = salt
    return prompt


def _answer(output: Any) -> Answer:
    said = (output.kv_transfer_params or {}).get("semblend", {})
    return Answer(
        request_id=output.request_id,
        tokens=tuple(output.outputs[0].token_ids),
        cached_tokens=int(output.num_cached_tokens or 0),
        semblend=said,
    )
