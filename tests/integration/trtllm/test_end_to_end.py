"""Opt-in: a real TensorRT-LLM on a real GPU. Skipped, loudly, everywhere else.

    SEMBLEND_TRTLLM_E2E_MODEL=Qwen/Qwen2.5-1.5B-Instruct pytest -rs \\
        tests/integration/trtllm/test_end_to_end.py

Only this is an end-to-end run. What it checks: a prefix the engine has lost is loaded and
answers as without a connector; a document that moved is served as a ladder, the engine
confirms what was reused, and nothing of it is found by an ordinary request; the harness's
gates hold.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch

MODEL = os.environ.get("SEMBLEND_TRTLLM_E2E_MODEL", "")


def why_not() -> str | None:
    if not torch.cuda.is_available():
        return "no NVIDIA GPU"
    if importlib.util.find_spec("tensorrt_llm") is None:
        return "TensorRT-LLM is not installed"
    if not MODEL:
        return "SEMBLEND_TRTLLM_E2E_MODEL names no model"
    return None


REASON = why_not()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(REASON is not None, reason=f"END TO END NOT RUN: {REASON}"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """An LLM with the connector, a ladder client, a tokenizer and the audit file."""
    import tensorrt_llm

    from semblend.integration.ladder_socket import DeskClient
    from semblend.integration.trtllm.ladder_client import LadderLLM
    from semblend.integration.trtllm.launcher import connector_config
    from semblend.integration.trtllm.options import VARIABLE

    folder = tmp_path_factory.mktemp("trtllm")
    socket, audit = folder / "ladder.sock", folder / "audit.jsonl"
    os.environ[VARIABLE] = json.dumps(
        {
            "mode": "segmented_experimental",
            "min_prompt_tokens": 64,
            "ladder_socket": str(socket),
            "audit_path": str(audit),
        }
    )
    llm = tensorrt_llm.LLM(model=MODEL, kv_connector_config=connector_config())
    tokenizer = getattr(llm.tokenizer, "tokenizer", llm.tokenizer)
    yield llm, LadderLLM(llm, DeskClient(socket)), tokenizer, audit
    llm.shutdown()
    os.environ.pop(VARIABLE)


def answer(llm, tokens, *, salt, most=16):
    from tensorrt_llm import SamplingParams

    async def ask():
        parameters = SamplingParams(max_tokens=most, temperature=0.0)
        return await llm.generate_async(list(tokens), parameters, cache_salt=salt)

    return list(asyncio.run(ask()).outputs[0].token_ids)


def events(audit: Path, name: str):
    records = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    return [one for one in records if one["event"] == name]


def documents():
    from benchmarks.suite.documents import case, document_of

    from semblend.quality.texts.documents import DocumentWriter

    document = document_of(DocumentWriter(1), 1200)
    return [case(document, instruction=n, fact=n).text for n in (0, 1)]


def test_a_moved_document_is_served_confirmed_and_private(served):
    from tensorrt_llm import SamplingParams

    llm, ladder, tokenizer, audit = served
    donor, target = (tokenizer(text)["input_ids"] for text in documents())
    cold = answer(llm, target, salt="cold")
    answer(llm, donor, salt="alice")
    answer(llm, donor[:70], salt="settle")
    climbed = asyncio.run(
        ladder.generate(target, SamplingParams(max_tokens=16, temperature=0.0), cache_salt="alice")
    )
    assert climbed.report["reused_tokens"] > 500
    assert any(one["requires_rope_correction"] for one in events(audit, "materialized"))
    assert answer(llm, target, salt="alice") == cold, "an ordinary request is exact"


def test_the_harness_passes_its_gates(tmp_path):
    from benchmarks.suite import trtllm_semantic_validation as harness

    output = tmp_path / "trtllm.json"
    gates = ["--min-speedup", "1.05", "--min-rouge1", "0.35", "--min-token-f1", "0.10"]
    code = harness.main(["--engine", "trtllm", "--model", MODEL, "--output", str(output), *gates])
    body = json.loads(output.read_text(encoding="utf-8"))
    assert (code, body["failures"]) == (0, [])
