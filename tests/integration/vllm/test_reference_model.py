"""The bundled model: vLLM's answers are the embedded engine's for the same plan."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from semblend.core.settings import EmbedderKind, Settings
from semblend.engine import EmbeddedEngine, EngineOptions
from semblend.engine.api import GenerationRequest, SamplingParams
from tests.integration.models import REFERENCE

FACTS = (
    "The lighthouse keeper of Varn is called Mirelle Otho. ",
    "The library of Tesk opens at half past seven. ",
    "The bridge over the Halm was built by Ansel Brock. ",
    "The market of Ruun sells saffron on Thursdays. ",
)
FILLER = "Visitors are asked to leave their lamps at the gate and to speak softly. " * 3
INSTRUCTION = "You are a careful guide. Answer from these pages only. " * 2
QUESTIONS = ("Who keeps the lighthouse of Varn?", "Who built the bridge over the Halm?")
POLICIES = ("none", "span_head(16)", "query_attention(0.2)", "seams(4) + query_attention(0.1)")
SERIALS = itertools.count(1)


@pytest.fixture(scope="module")
def prompts():
    """A donor, and prompts with its passages moved behind another instruction."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)

    def ids(text):
        return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)

    passages = [fact + FILLER for fact in FACTS]
    donor = ids("Read the following notes. " + " ".join(passages))
    moved = [
        ids(INSTRUCTION + " ".join(order) + question)
        for order in (passages[::-1], passages[2:] + passages[:2])
        for question in QUESTIONS
    ]
    return donor, moved


def test_served_answers_equal_the_embedded_engines(make_engine, prompts):
    donor, moved = prompts
    engine = make_engine(
        "reference", engine={"max_model_len": 4096, "kv_cache_memory_bytes": 256 << 20}
    )
    engine.donate(donor)
    settings = Settings(
        embedder=EmbedderKind.NONE,
        allow_uncertified=True,
        min_prompt_tokens=64,
        namespace_secret="test",
    )
    options = EngineOptions(device="cpu")
    with EmbeddedEngine.load(str(REFERENCE), options=options, settings=settings) as embedded:
        answer(embedded, donor, reuse=False)
        for prompt, policy in itertools.product(moved, POLICIES):
            engine.forget_prefixes()
            hints = {"policy": policy, "capture": False}
            served = engine.run(prompt, max_tokens=12, hints=hints)
            embedded.flush_prefix_cache()
            tokens, report = answer(embedded, prompt, policy=policy, donate=False)
            assert served.semblend["outcome"] == report.outcome.value == "materialised"
            assert served.semblend["reused_tokens"] == report.reused_tokens
            assert served.semblend["recomputed_tokens"] == report.recomputed_tokens
            assert list(served.tokens) == tokens


def answer(embedded, tokens, **options):
    request = GenerationRequest(
        request_id=f"r{next(SERIALS)}",
        tokens=tokens,
        namespace=embedded.namespace(),
        sampling=SamplingParams(max_tokens=12, ignore_eos=True),
        **options,
    )
    result = embedded.submit(request).result()
    embedded.donors.wait()
    return list(result.token_ids), result.report
