"""The engines a semantic validation can run on, behind one small interface.

Each serves a prompt twice: `cold` with a fresh salt, and `warm` with its donor's salt. Reuse is
what the engine confirms, never what was planned.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.vllm_connector import llm_options
from sembench.errors import SemBenchError

ENGINES = ("trtllm", "embedded", "vllm")


class EngineUnavailableError(SemBenchError):
    """The requested engine is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One answer."""

    text: str
    ttft_ms: float
    """From submission to the first token, including all rungs of a ladder."""
    prompt_tokens: int
    reused_tokens: int
    """As confirmed by the engine."""


class ValidationEngine(Protocol):
    """What the harness needs from an engine."""

    name: str
    description: str
    policy: str
    certified: bool

    def donor(self, text: str, salt: str) -> None:
        """Serve a prompt that becomes a donor; return once it can be found."""
        ...

    def cold(self, text: str, salt: str, max_tokens: int) -> Served:
        """Serve a prompt with nothing to reuse."""
        ...

    def warm(self, text: str, salt: str, max_tokens: int) -> Served:
        """Serve a prompt that may reuse what this salt's donors hold."""
        ...

    def close(self) -> None: ...


def installed(name: str) -> bool:
    """Whether an engine can run in this environment."""
    package = {"trtllm": "tensorrt_llm", "vllm": "vllm", "embedded": "torch"}[name]
    return importlib.util.find_spec(package) is not None


def open_engine(name: str, model: str, *, policy: str | None) -> ValidationEngine:
    """Start an engine; with `policy` None it runs under the model's certificate.

    Raises
    ------
    EngineUnavailableError
        If it is not installed.
    """
    if name == "auto":
        name = "trtllm" if installed("trtllm") else "embedded"
    if not installed(name):
        others = [other for other in ENGINES if installed(other)]
        raise EngineUnavailableError(
            f"--engine {name}: not installed in this environment; installed: {', '.join(others)}"
        )
    makers = {"trtllm": TensorRtLlm, "embedded": Embedded, "vllm": Vllm}
    return makers[name](model, policy)


def chat_tokens(tokenizer: Any, text: str) -> list[int]:
    """The prompt as the model was trained on it, with its chat template if it has one."""
    if getattr(tokenizer, "chat_template", None):
        tokens = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
    else:
        tokens = tokenizer(text)["input_ids"]
    return [int(token) for token in tokens]


class Embedded:
    """SemBlend's own engine, in this process."""

    name = "embedded"

    def __init__(self, model: str, policy: str | None) -> None:
        from semblend.core.settings import Settings
        from semblend.engine import EmbeddedEngine

        settings = Settings.from_env(
            allow_uncertified=policy is not None, embedder="none", shadow_rate=0.0
        )
        self._engine = EmbeddedEngine.load(model, settings=settings)
        self.certified = policy is None
        self.policy = policy or self._engine.standing.policy or "none"
        self._override = policy
        self.description = f"embedded engine, {self._engine.model.device}, {_dtype(self._engine)}"
        self._serial = 0

    def donor(self, text: str, salt: str) -> None:
        self._serve(text, salt, 1, reuse=False, donate=True)
        self._engine.donors.wait()

    def cold(self, text: str, salt: str, max_tokens: int) -> Served:
        return self._serve(text, salt, max_tokens, reuse=False, donate=False)

    def warm(self, text: str, salt: str, max_tokens: int) -> Served:
        return self._serve(text, salt, max_tokens, reuse=True, donate=False)

    def close(self) -> None:
        self._engine.close()

    def _serve(self, text: str, salt: str, max_tokens: int, *, reuse: bool, donate: bool) -> Served:
        from semblend.core.tokens import as_token_array
        from semblend.engine.api import GenerationRequest, SamplingParams

        self._serial += 1
        request = GenerationRequest(
            request_id=f"validation-{self._serial}",
            tokens=as_token_array(chat_tokens(self._engine.tokenizer, text)),
            namespace=self._engine.namespace(cache_salt=salt),
            sampling=SamplingParams(max_tokens=max_tokens),
            reuse=reuse,
            donate=donate,
            policy=self._override,
        )
        result = self._engine.submit(request).result()
        return Served(
            text=result.text,
            ttft_ms=result.report.ttft_ms,
            prompt_tokens=result.report.prompt_tokens,
            reused_tokens=result.report.reused_tokens,
        )


class Vllm:
    """vLLM with the connector, in this process."""

    name = "vllm"

    def __init__(self, model: str, policy: str | None) -> None:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("SEMBLEND_MEASURE_SPEED", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        import vllm

        extra: dict[str, Any] = {"mode": "segmented", "min_prompt_tokens": 64}
        if policy is not None:
            extra.update(mode="segmented_experimental", recompute_policy=policy)
        self._llm = vllm.LLM(
            model=model,
            dtype="auto" if _on_gpu() else "float32",
            enforce_eager=True,
            **llm_options(extra),
            **({} if _on_gpu() else {"kv_cache_memory_bytes": 512 << 20}),
        )
        self._core: Any = self._llm.llm_engine.engine_core.engine_core
        setup = self._core.scheduler.connector.scheduler_side.setup
        self.certified = policy is None
        self.policy = policy or setup.standing.policy or "none"
        self.description = f"vLLM {vllm.__version__}, {'GPU' if _on_gpu() else 'CPU'}, nested"
        self._serial = 0

    def donor(self, text: str, salt: str) -> None:
        self._serve(text, salt, 1, {"reuse": False, "capture": True})

    def cold(self, text: str, salt: str, max_tokens: int) -> Served:
        return self._serve(text, salt, max_tokens, {"reuse": False, "capture": False})

    def warm(self, text: str, salt: str, max_tokens: int) -> Served:
        return self._serve(text, salt, max_tokens, {"capture": False})

    def close(self) -> None:
        self._core.shutdown()

    def _serve(self, text: str, salt: str, max_tokens: int, hints: dict[str, Any]) -> Served:
        from vllm import SamplingParams

        self._serial += 1
        tokens = chat_tokens(self._llm.get_tokenizer(), text)
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            extra_args={"kv_transfer_params": {"semblend": hints}},
        )
        prompt: Any = {"prompt_token_ids": tokens, "cache_salt": salt}
        engine: Any = self._llm.llm_engine
        started, first, last = time.perf_counter(), 0.0, None
        engine.add_request(f"validation-{self._serial}", prompt, sampling)
        while engine.has_unfinished_requests():
            for output in engine.step():
                first = first or time.perf_counter() - started
                last = output
        while self._core.scheduler.has_requests():  # until the donor is copied
            self._core.step_fn()
        if last is None:
            raise EngineUnavailableError("vLLM gave no answer")
        said = (last.kv_transfer_params or {}).get("semblend", {})
        return Served(
            text=last.outputs[0].text,
            ttft_ms=first * 1e3,
            prompt_tokens=len(tokens),
            reused_tokens=int(said.get("reused_tokens", 0)),
        )


class TensorRtLlm:
    """TensorRT-LLM with the connector; warm requests climb the salted ladder."""

    name = "trtllm"

    def __init__(self, model: str, policy: str | None) -> None:
        import tensorrt_llm

        from semblend.integration.ladder_socket import DeskClient
        from semblend.integration.trtllm.ladder_client import LadderLLM
        from semblend.integration.trtllm.launcher import connector_config
        from semblend.integration.trtllm.options import VARIABLE

        self._folder = tempfile.TemporaryDirectory(prefix="semblend-validation-")
        socket = Path(self._folder.name) / "ladder.sock"
        values: dict[str, Any] = {
            "mode": "segmented",
            "min_prompt_tokens": 64,
            "ladder_socket": str(socket),
            "audit_path": str(Path(self._folder.name) / "audit.jsonl"),
        }
        if policy is not None:
            values.update(mode="segmented_experimental", recompute_policy=policy)
        os.environ[VARIABLE] = json.dumps(values)
        self._sampling = tensorrt_llm.SamplingParams
        self._runner = asyncio.Runner()  # one loop for all requests, as in a server
        self._llm = tensorrt_llm.LLM(model=model, kv_connector_config=connector_config())
        self._ladder = LadderLLM(self._llm, DeskClient(socket))
        self.certified = policy is None
        self.policy = policy or "as certified"
        self.description = f"TensorRT-LLM {tensorrt_llm.__version__}, salted ladder"

    def donor(self, text: str, salt: str) -> None:
        tokens = self._tokens(text)
        self._runner.run(self._plain(tokens, salt, 1))
        time.sleep(0.5)  # the copy is made off the request path
        self._runner.run(self._plain(tokens[:1], f"{salt}/settle", 1))

    def cold(self, text: str, salt: str, max_tokens: int) -> Served:
        tokens = self._tokens(text)
        started = time.perf_counter()
        self._runner.run(self._plain(tokens, f"{salt}/timed", 1))
        ttft = (time.perf_counter() - started) * 1e3
        output = self._runner.run(self._plain(tokens, f"{salt}/text", max_tokens))
        return Served(
            text=output.outputs[0].text, ttft_ms=ttft, prompt_tokens=len(tokens), reused_tokens=0
        )

    def warm(self, text: str, salt: str, max_tokens: int) -> Served:
        # Twice, each with its own private salt: once for the time, once for the text.
        tokens = self._tokens(text)
        started = time.perf_counter()
        self._runner.run(self._ladder.generate(tokens, self._params(1), cache_salt=salt))
        ttft = (time.perf_counter() - started) * 1e3
        answer = self._runner.run(
            self._ladder.generate(tokens, self._params(max_tokens), cache_salt=salt)
        )
        return Served(
            text=answer.output.outputs[0].text,
            ttft_ms=ttft,
            prompt_tokens=len(tokens),
            reused_tokens=int(answer.report.get("reused_tokens", 0)),
        )

    def close(self) -> None:
        self._runner.close()
        self._llm.shutdown()
        self._folder.cleanup()

    def _tokens(self, text: str) -> list[int]:
        tokenizer = self._llm.tokenizer
        return chat_tokens(getattr(tokenizer, "tokenizer", tokenizer), text)

    def _params(self, max_tokens: int) -> Any:
        return self._sampling(max_tokens=max_tokens, temperature=0.0)

    async def _plain(self, tokens: list[int], salt: str, max_tokens: int) -> Any:
        return await self._llm.generate_async(tokens, self._params(max_tokens), cache_salt=salt)


def _dtype(engine: Any) -> str:
    return str(engine.model.kv_shape.dtype).removeprefix("torch.")


def _on_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())
