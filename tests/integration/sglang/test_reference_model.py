"""The bundled model on the demo's workloads: tokens computed, and the embedded engine's answers."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.demo.scenarios import make_demo
from semblend.engine import EmbeddedEngine, EngineOptions
from semblend.engine.api import GenerationRequest, SamplingParams
from semblend.planning.certificates import SHIPPED
from tests.integration.models import REFERENCE
from tests.integration.sglang import probes

POLICY = Settings.model_fields["recompute_policy"].default
CERTIFICATE = json.loads(next(SHIPPED.glob("*.json")).read_text())
PROBED = (
    "query_attention(0.2)",
    "budget(edit_dependents(1, 8) + span_head(8) + query_attention(0.05), 0.15)",
    CERTIFICATE["policy"],
)
"""Policies that look at the model's work first; the last is the bundled model's certified one."""
NEW_TOKENS = 8
SERIALS = itertools.count(1)


@dataclass(frozen=True)
class Workload:
    """One scenario of the demo, as token ids."""

    name: str
    tokens: TokenArray
    policy: str
    tenant: str


@pytest.fixture(scope="module")
def workloads():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)

    def ids(prompt) -> TokenArray:
        text = tokenizer.apply_chat_template(
            prompt.messages, add_generation_prompt=True, tokenize=False
        )
        return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)

    demo = make_demo(7, paragraphs=12)
    asked = [
        Workload(
            name=scenario.name,
            tokens=ids(scenario.prompt),
            policy=scenario.policy or POLICY,
            tenant=scenario.tenant,
        )
        for scenario in demo.scenarios
    ]
    # In front of prompts that are computed cold: those would be exact prefixes of these.
    asked[:0] = [
        replace(work, name=f"{work.name}, {policy}", policy=policy)
        for policy in PROBED
        for work in asked
        if work.name in ("reordered passages", "four donors", "edited copy, naive")
    ]
    return [ids(prompt) for prompt in demo.read], asked


@pytest.fixture(scope="module")
def served(make_engine, workloads):
    """Every scenario's answer and forwards from SGLang."""
    donors, asked = workloads
    engine = make_engine(
        "reference",
        server={
            "context_length": 4096,
            "max_total_tokens": 40_000,
            "chunked_prefill_size": 8192,
            "skip_tokenizer_init": False,  # sentences end where its vocabulary says
        },
        recompute_policy=CERTIFICATE["policy"],  # brings the model's table of depth drift
    )
    for donor in donors:
        engine.donate(donor, extra_key="demo")
    engine.forwards()
    answers = {}
    for work in asked:
        engine.call(probes.set_policy, work.policy)
        answer = engine.run(work.tokens, extra_key=work.tenant, max_tokens=NEW_TOKENS)
        answers[work.name] = (answer, engine.forwards())
    engine.assert_no_leak()
    return answers


def test_holes_recompute_and_tail_are_all_the_forward_sees(served, workloads):
    for work in workloads[1]:
        answer, forwards = served[work.name]
        said = answer.semblend
        seen = sum(length for forward in forwards for _, _, length in forward)
        tail = said["prompt_tokens"] - said["exact_tokens"] - said["reused_tokens"]
        if work.policy in PROBED and said["outcome"] == "materialised":
            assert len(forwards) in (2, 3), "the probe, what it chose if anything, the tail"
            seen -= sum(length for _, _, length in forwards[0])
            assert seen <= tail
            continue
        if said["outcome"] == "materialised":
            computed = said["hole_tokens"] + said["recomputed_tokens"]
            assert seen >= computed
            assert len(forwards) == 2, "one pass over holes, one over the tail"
        assert seen == tail, work.name
        assert answer.cached_tokens == said["exact_tokens"] + said["reused_tokens"]


def test_known_documents_are_reused_and_unknown_ones_are_not(served):
    reused = {name: answer.semblend["reused_tokens"] for name, (answer, _) in served.items()}
    print(
        "\n".join(
            f"{name:24} prompt {answer.semblend['prompt_tokens']:5} reused {reused[name]:5} "
            f"computed {sum(n for f in forwards for _, _, n in f):5}"
            for name, (answer, forwards) in served.items()
        )
    )
    for name, tokens in reused.items():
        if name in ("unseen document", "other tenant"):
            assert tokens == 0
        elif name != "edited copy":
            assert tokens > 0.6 * served[name][0].semblend["prompt_tokens"]


def test_answers_equal_the_embedded_engines_for_the_same_plan(served, workloads):
    donors, asked = workloads
    settings = Settings(embedder=EmbedderKind.NONE, allow_uncertified=True, namespace_secret="test")
    options = EngineOptions(device="cpu")
    with EmbeddedEngine.load(str(REFERENCE), options=options, settings=settings) as embedded:
        for donor in donors:
            answered(embedded, donor, "demo", reuse=False)
        for work in asked:
            embedded.flush_prefix_cache()
            tokens, report = answered(
                embedded, work.tokens, work.tenant, policy=work.policy, donate=False
            )
            answer, _ = served[work.name]
            assert answer.semblend["reused_tokens"] == report.reused_tokens, work.name
            assert answer.semblend["recomputed_tokens"] == report.recomputed_tokens, work.name
            assert list(answer.tokens) == tokens, work.name


def answered(embedded, tokens, tenant, **options):
    request = GenerationRequest(
        request_id=f"r{next(SERIALS)}",
        tokens=tokens,
        namespace=embedded.namespace(tenant=tenant),
        sampling=SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True),
        **options,
    )
    result = embedded.submit(request).result()
    embedded.donors.wait()
    return list(result.token_ids), result.report
