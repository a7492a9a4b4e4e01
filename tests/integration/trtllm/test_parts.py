"""The adapter's parts alone: namespaces, refusals, plans, budgets, options, launcher, doctor."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from semblend.cli.main import app
from semblend.core.errors import PlanError, SettingsError, UnsupportedModelError
from semblend.core.namespace import Namespace
from semblend.core.settings import Settings
from semblend.integration.isolation import by_salt
from semblend.integration.loaded_model.model_identity import for_discovery
from semblend.integration.modes import Mode
from semblend.integration.option_values import options_table
from semblend.integration.scheduler.donor_budget import DonorBudget
from semblend.integration.scheduler.engine_planner import EnginePlanner, Offer
from semblend.integration.trtllm import namespaces
from semblend.integration.trtllm.engine_facts import EngineFacts
from semblend.integration.trtllm.launcher import CONNECTOR, chooses_manager, prepare
from semblend.integration.trtllm.options import ConnectorOptions
from semblend.integration.trtllm.pool_view import PoolView
from semblend.integration.trtllm.semantic_plan import (
    AttentionMode,
    EngineExecution,
    PlanKind,
    PublicationPolicy,
    SemanticKvLookupRequest,
    SemanticKvPlan,
    SemanticKvSegment,
    lookup,
)
from semblend.integration.trtllm.support import engine_refusals, request_refusal
from semblend.integration.worker.donors import segment_keys
from semblend.kv.layout import block_slots
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import SpanCopy
from semblend.kv.transfer import copy_spans
from tests.integration.models import folder_of, joined, random_tokens
from tests.integration.trtllm.engines import BLOCK, llm_args

ROOT = Path(__file__).parents[3]
OPTIONS = ConnectorOptions()
SETTINGS = Settings(embedder="none")


def namespace_of(**changes):
    args = llm_args(folder_of("llama"), **changes)
    return namespaces.engine_namespace(EngineFacts.of(args), OPTIONS, SETTINGS)


# -- namespaces --------------------------------------------------------------------------


def test_every_part_of_the_namespace_is_read_from_the_engine():
    found = namespace_of()
    assert found.is_complete
    assert found.block_size == BLOCK
    assert found.cache_dtype == "float32"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"dtype": "bfloat16"}, "kv_dtype"),
        ({"kv_cache_dtype": "bfloat16"}, "cache_dtype"),
        ({"tensor_parallel_size": 2}, "tensor_parallel"),
        ({"tokens_per_block": 32}, "block_size"),
        (
            {"quant_config": SimpleNamespace(quant_algo="FP8", kv_cache_quant_algo=None)},
            "quantization",
        ),
        (
            {"quant_config": SimpleNamespace(quant_algo=None, kv_cache_quant_algo="FP8")},
            "cache_dtype",
        ),
        ({"model": folder_of("llama-yarn")}, "rope"),
        ({"model": folder_of("qwen2")}, "model_revision"),
    ],
)
def test_whatever_differs_makes_another_namespace(changes, part):
    mine, other = namespace_of(), namespace_of(**changes)
    assert getattr(mine, part) != getattr(other, part)
    assert mine.key() != other.key()


@pytest.mark.parametrize(
    ("missing", "part"),
    [
        ("model", "model"),
        ("quant_config", "quantization"),
        ("tensor_parallel_size", "tensor_parallel"),
        ("kv_cache_config", "block_size"),
        ("kv_cache_config", "cache_dtype"),
    ],
)
def test_a_part_that_cannot_be_read_is_unknown_and_never_any(missing, part):
    args = llm_args(folder_of("llama"))
    delattr(args, missing)
    found = namespaces.engine_namespace(EngineFacts.of(args), OPTIONS, SETTINGS)
    assert part in found.unknown_parts
    assert for_discovery(found).is_complete


def test_a_quantisation_the_files_do_not_state_is_not_what_was_certified():
    """A certificate is found by the files; a build that quantises them computes something else."""
    stored, plain = folder_of("llama-awq"), folder_of("llama")
    told = SimpleNamespace(quant_algo="FP8", kv_cache_quant_algo=None)
    untold = SimpleNamespace(quant_algo=None, kv_cache_quant_algo=None)
    assert EngineFacts.of(llm_args(plain, quant_config=untold)).added_quantization == "none"
    assert EngineFacts.of(llm_args(stored, quant_config=untold)).added_quantization == "none"
    assert EngineFacts.of(llm_args(plain, quant_config=told)).added_quantization == "FP8"


def test_a_model_of_the_hub_is_known_by_its_commit(tmp_path, monkeypatch):
    """What users give is a name, and the files are in the hub's cache."""
    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "models--acme--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(commit, encoding="utf-8")
    (cached / "snapshots").mkdir()
    shutil.copytree(folder_of("llama"), cached / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    found = namespace_of(model="acme/tiny")
    assert found.is_complete
    assert found.model == "acme/tiny"
    assert found.model_revision == found.tokenizer_revision == f"revision:{commit}"
    other = namespace_of(model="acme/tiny", tokenizer=folder_of("qwen2"))
    assert other.tokenizer_revision.startswith("files:")


def test_a_model_that_is_not_here_has_no_known_revision():
    args = llm_args("somebody/never-downloaded-model")
    unknown = namespaces.engine_namespace(EngineFacts.of(args), OPTIONS, SETTINGS).unknown_parts
    assert {"model_revision", "rope", "quantization"} <= set(unknown)


def test_an_unknown_part_means_discovery_only(make):
    blind = make(args={"tensor_parallel_size": None})
    document = random_tokens(200, seed=1)
    for tail in (2, 3):
        blind.run(joined(document, random_tokens(20, seed=tail)))
        blind.executor.blocks.forget_cached()
    assert not blind.records("materialized")
    assert blind.records("scheduler_initialized")[0]["unknown_parts"] == ["tensor_parallel"]
    lookups = blind.records("lookup")
    assert lookups[1]["found"] is True, "it is found and reported"
    assert lookups[1]["num_new_matched_tokens"] == 0


def test_a_request_whose_salt_cannot_be_read_is_left_alone(make):
    engine = make()
    document = random_tokens(200, seed=1)
    engine.run(joined(document, random_tokens(20, seed=2)))
    engine.executor.blocks.forget_cached()
    request = engine.executor.submit(joined(document, random_tokens(20, seed=3)))
    del request.cache_salt
    engine.executor.drain()
    assert not engine.records("materialized")
    assert engine.records("lookup")[-1]["rejection_reason"] == "incomplete_namespace"


# -- refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"context_parallel_size": 2}, "context parallelism"),
        ({"max_beam_width": 4}, "beam search"),
        ({"enable_attention_dp": True}, "attention data parallelism"),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"enable_lora": True}, "LoRA"),
        ({"max_attention_window": [512]}, "attention windows"),
        ({"use_kv_cache_manager_v2": True}, "KVCacheManagerV2"),
        ({"kv_cache_dtype": "fp8"}, "K/V cache of type fp8"),
    ],
)
def test_what_was_not_proven_is_refused_by_name(changes, feature):
    args = llm_args(folder_of("llama"), **changes)
    refusals = engine_refusals(args, EngineFacts.of(args), OPTIONS)
    assert any(feature in str(refusal) for refusal in refusals), refusals


def test_an_ordinary_engine_is_not_refused():
    args = llm_args(folder_of("llama"))
    assert engine_refusals(args, EngineFacts.of(args), OPTIONS) == []


def test_a_refused_engine_runs_as_it_would_without_us(make):
    engine = make(args={"speculative_config": object()})
    document = random_tokens(200, seed=1)
    for tail in (2, 3):
        engine.run(joined(document, random_tokens(20, seed=tail)))
        engine.executor.blocks.forget_cached()
    assert not engine.records("materialized")
    assert engine.records("scheduler_initialized")[0]["refusals"] == ["speculative decoding"]


def test_a_pool_of_another_kind_is_left_alone(make):
    engine = make()
    engine.workers[0].register_kv_caches(torch.zeros(4, 3, 1, 128))
    document = random_tokens(200, seed=1)
    for tail in (2, 3):
        engine.run(joined(document, random_tokens(20, seed=tail)))
        engine.executor.blocks.forget_cached()
    assert not engine.records("materialized")


def test_the_newer_cache_manager_is_refused_by_name(make):
    engine = make()
    engine.workers[0].register_kv_cache_layout(SimpleNamespace(groups=(1, 2)))
    engine.run(random_tokens(200, seed=1))
    (refusal,) = engine.scheduler.side._link.refusals
    assert refusal.startswith("KVCacheManagerV2 (2 layer groups)")
    assert "use_kv_cache_manager_v2: false" in refusal
    assert not engine.records("plan_dispatched")


def test_several_layer_groups_mean_discovery_and_not_a_failed_start(make):
    """TensorRT-LLM starts such an engine only if both per-group callbacks are implemented."""
    engine = make()
    engine.workers[0].register_kv_cache_layout(SimpleNamespace(groups=(1, 2)))
    scheduler, document = engine.scheduler, random_tokens(200, seed=1)
    grouped = {
        "update_state_after_alloc": lambda request, ids: (
            scheduler.update_state_after_alloc_by_layer_group(request, [ids, [-1] * len(ids)])
        ),
        "request_finished": lambda request, ids: scheduler.request_finished_by_layer_group(
            request, [ids, [-1] * len(ids)]
        ),
    }
    for name, call in grouped.items():
        setattr(scheduler, name, call)
    for tail in (2, 3):
        engine.run(joined(document, random_tokens(20, seed=tail)))
        engine.executor.blocks.forget_cached()
    assert not engine.records("plan_dispatched")
    assert engine.records("donor_registered")
    assert not scheduler.side.shared.requests


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("lora_task_id", 3), ("multimodal_hashes", [[1]]), ("prompt_embedding_table", np.zeros(3))],
)
def test_requests_with_more_than_tokens_are_refused(attribute, value):
    request = SimpleNamespace(lora_task_id=None)
    assert request_refusal(request) is None
    setattr(request, attribute, value)
    assert request_refusal(request)


# -- plans -------------------------------------------------------------------------------


def segment(**changes):
    values = {
        "donor_id": "d",
        "donor_segment_id": "s",
        "donor_positions": (0, 8),
        "target_positions": (8, 16),
    }
    return SemanticKvSegment(**{**values, **changes})


def plan(**changes):
    values = {
        "request_id": "1",
        "namespace": "n",
        "kind": PlanKind.REQUEST_LOCAL_PREFIX,
        "publication_policy": PublicationPolicy.REQUEST_LOCAL,
        "prefix_token_count": 64,
        "computed_token_count": 16,
    }
    return SemanticKvPlan(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"computed_token_count": 65}, "computed_token_count"),
        ({"publication_policy": PublicationPolicy.EXACT_CACHE}, "may not be published"),
        (
            {
                "kind": PlanKind.REQUEST_LOCAL_SEGMENTED,
                "publication_policy": PublicationPolicy.EXACT_CACHE,
            },
            "may not be published",
        ),
        (
            {
                "kind": PlanKind.EXACT_PREFIX,
                "publication_policy": PublicationPolicy.EXACT_CACHE,
                "requires_rope_correction": True,
            },
            "rotated",
        ),
        (
            {
                "engine_execution": EngineExecution(
                    attention_mode=AttentionMode.SUFFIX_ONLY_AFTER_PREFIX, suffix_start_position=48
                )
            },
            "a suffix that starts at 48",
        ),
        ({"segments": (segment(layer_recompute_mask=(True, False)),)}, "boundary at layer None"),
        (
            {
                "segments": (segment(layer_recompute_mask=(False, True)),),
                "engine_execution": EngineExecution(recompute_boundary_layer=1),
            },
            "boundary at layer 1",
        ),
    ],
)
def test_a_plan_that_breaks_an_invariant_cannot_be_made(changes, message):
    plan()
    with pytest.raises(PlanError, match=message):
        plan(**changes)


def test_a_segment_is_as_long_in_donor_and_target():
    with pytest.raises(PlanError, match="differ in length"):
        segment(target_positions=(8, 17))


def test_dispatched_plans_say_where_their_kv_may_go(make):
    engine = make()
    document = random_tokens(200, seed=1)
    engine.run(joined(document, random_tokens(20, seed=2)))
    engine.executor.blocks.forget_cached()
    engine.run(joined(document, random_tokens(20, seed=3)))
    (exact,) = engine.records("plan_dispatched")
    assert (exact["kind"], exact["publication_policy"]) == ("exact_prefix", "exact_cache")
    assert exact["plan"]["segments"][0]["target_positions"] == [0, 192]
    assert len(exact["plan"]["segments"][0]["target_block_ids"]) == 192 // BLOCK
    layers = engine.workers[0].side.parts.view.layer_count
    assert exact["plan"]["segments"][0]["layer_recompute_mask"] == [False] * layers
    assert exact["plan"]["engine_execution"]["recompute_boundary_layer"] == 0
    import asyncio

    asyncio.run(engine.ladder(joined(random_tokens(32, seed=4), document, [7] * 9)))
    rungs = engine.records("plan_dispatched")[1:]
    assert rungs
    assert {one["publication_policy"] for one in rungs} == {"request_local"}


def test_a_lookup_answers_with_a_plan_whatever_it_finds():
    settings = Settings(embedder="none", allow_uncertified=True, recompute_policy="none")
    planner = EnginePlanner(settings=settings, mode=Mode.EXACT_PREFIX, block_size=16)
    engine = Namespace.of(model="m")
    document = random_tokens(300, seed=1)
    namespace = engine.with_parts(cache_salt=by_salt("alice"))
    offer = Offer(donor_id="7", request_id="7", tokens=document, namespace=namespace, blocks=19)
    assert planner.offer(offer)
    assert not planner.offer(replace(offer, donor_id="8")), "the same content once"
    assert planner.stored("7") is offer
    assert planner.register(offer)
    tokens = tuple(joined(random_tokens(40, seed=2), document, [5]).tolist())
    asked = SemanticKvLookupRequest(request_id="9", tokens=tokens, cache_salt="alice")
    found = lookup(planner, engine, asked)
    assert found.found
    assert found.plan.kind is PlanKind.REQUEST_LOCAL_SEGMENTED
    assert found.plan.requires_rope_correction
    other = lookup(planner, engine, SemanticKvLookupRequest(request_id="9", tokens=tokens))
    assert not other.found
    assert other.rejection_reason == "no_match"
    planner.close()


# -- budget and pool ---------------------------------------------------------------------


@given(
    prompts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1500)), max_size=12),
    capacity=st.integers(100, 4000),
)
def test_the_budget_is_never_exceeded_and_counts_shared_segments_once(prompts, capacity):
    budget = DonorBudget(capacity)
    budget.set_token_bytes(1)
    held: dict[str, tuple] = {}
    for number, (seed, size) in enumerate(prompts):
        keys = segment_keys(b"n" * 16, random_tokens(size, seed=seed))
        kept, evicted = budget.admit(str(number), keys)
        for gone in evicted:
            del held[gone]
        if kept:
            held[str(number)] = keys
        unique = {key.digest: key.length for keys in held.values() for key in keys}
        assert budget.used_bytes == sum(unique.values()) <= capacity
        assert len(budget) == len(held)


def test_pinned_donors_stay():
    budget = DonorBudget(1000)
    budget.set_token_bytes(1)
    budget.admit("a", segment_keys(b"n" * 16, random_tokens(400, seed=1)))
    assert budget.pin(("a",))
    assert budget.admit("b", segment_keys(b"n" * 16, random_tokens(700, seed=2))) == (False, [])
    budget.unpin(("a",))
    assert budget.admit("b", segment_keys(b"n" * 16, random_tokens(700, seed=2))) == (True, ["a"])
    assert not budget.pin(("a",))


def test_nothing_is_evicted_for_a_prompt_that_does_not_fit_beside_what_is_pinned():
    budget = DonorBudget(1000)
    budget.set_token_bytes(1)
    for name, size, seed in (("pinned", 400, 1), ("free", 300, 2)):
        assert budget.admit(name, segment_keys(b"n" * 16, random_tokens(size, seed=seed)))[0]
    budget.pin(("pinned",))
    assert budget.admit("large", segment_keys(b"n" * 16, random_tokens(700, seed=3))) == (False, [])
    assert "free" in budget
    fits = segment_keys(b"n" * 16, random_tokens(600, seed=4))
    assert budget.admit("fits", fits) == (True, ["free"])


@given(
    start=st.integers(0, 40),
    length=st.integers(1, 40),
    heads=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_reading_finds_what_index_arithmetic_says(start, length, heads, seed):
    blocks, layers, size, dim = 12, 2, 8, 4
    pool = torch.arange(blocks * layers * 2 * heads * size * dim, dtype=torch.float32)
    view = PoolView(pool.view(blocks, layers, 2, -1), block_size=size, head_dim=dim)
    table = np.random.default_rng(seed).permutation(blocks)[:10].tolist()
    end = min(start + length, 80)
    found = view.read(table, start, end)
    assert found.shape == (layers, 2, end - start, heads, dim)
    six = pool.view(blocks, layers, 2, heads, size, dim)
    for position in range(start, end):
        expected = six[table[position // size], :, :, :, position % size]
        assert torch.equal(found[:, :, position - start], expected)


def test_what_is_copied_in_is_read_and_nothing_else_changes():
    pool = torch.zeros(6, 2, 2, 3 * 8 * 4)
    view = PoolView(pool, block_size=8, head_dim=4)
    kv = torch.randn(2, 2, 16, 3, 4)
    copy = SpanCopy(
        source=kv,
        source_slots=np.arange(16),
        target_slots=block_slots([-1, 4, 1], 8, 24, block_size=8, blocks=6),
        source_start=8,
        target_start=8,
    )
    rows = torch.arange(24)[:, None] * torch.tensor([1.0, 0.1])
    copy_spans(view.destination, [copy], RotaryTable(cos=rows.cos(), sin=rows.sin()))
    assert torch.equal(view.read([4, 1], 0, 16), kv)
    assert pool[[0, 2, 3, 5]].abs().max() == 0


@pytest.mark.parametrize(("blocks", "start"), [([-1, 2], 0), ([2, -1], 8), ([2], 0), ([], 0)])
def test_positions_without_a_page_have_no_slots(blocks, start):
    with pytest.raises(PlanError, match="pool"):
        block_slots(blocks, start, 16, block_size=8, blocks=6)


@pytest.mark.parametrize("blocks", [[-1, 2], [99]])
def test_a_page_that_is_none_is_never_an_index(blocks):
    view = PoolView(torch.zeros(6, 2, 2, 96), block_size=8, head_dim=4)
    with pytest.raises(PlanError, match="block ids"):
        view.read(blocks, 0, 8)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (torch.zeros(6, 2, 1, 96), "instead of 2"),
        (torch.zeros(6, 2, 2, 96, dtype=torch.uint8), "of type"),
        (torch.zeros(6, 2, 2, 97), "whole heads"),
        (torch.zeros(6, 2), "of shape"),
    ],
)
def test_pools_that_are_not_understood_are_refused(pool, message):
    with pytest.raises(UnsupportedModelError, match=message):
        PoolView(pool, block_size=8, head_dim=4)


# -- options, launcher, doctor, audit ----------------------------------------------------


def test_every_option_is_documented_as_it_is():
    assert options_table(ConnectorOptions) in (ROOT / "docs" / "trtllm.md").read_text(
        encoding="utf-8"
    )


def test_processes_that_get_only_the_engines_variables_get_ours():
    from semblend.integration.trtllm.options import FORWARDED, VARIABLE, forward

    environ = {VARIABLE: '{"mode": "exact_prefix"}', "SEMBLEND_DONOR_TENANT": "acme", "PATH": "x"}
    forward(environ)
    spawned = {key: value for key, value in environ.items() if key.startswith("TRTLLM")}
    assert list(spawned) == [FORWARDED]
    options = ConnectorOptions.from_env(spawned)
    assert options.mode.value == "exact_prefix"
    assert options.settings(spawned).donor_tenant == "acme"
    assert options.settings({**spawned, "SEMBLEND_DONOR_TENANT": "own"}).donor_tenant == "own"
    with pytest.raises(SettingsError, match=FORWARDED):
        ConnectorOptions.from_env({FORWARDED: "[1]"})


def test_a_wrong_option_is_named():
    with pytest.raises(SettingsError, match="did you mean mode"):
        ConnectorOptions.from_mapping({"mod": "segmented"})
    with pytest.raises(SettingsError, match="host_donor_bytes"):
        ConnectorOptions.from_mapping({"host_donor_bytes": -1})


def test_the_launcher_adds_the_connector_and_keeps_the_rest(tmp_path):
    argv = ["Qwen/Q", "--port", "8000", "--semblend-mode", "exact_prefix"]
    arguments, config, options = prepare(argv, {}, tmp_path)
    path = str(tmp_path / "options.json")
    assert arguments == ["Qwen/Q", "--port", "8000", "--extra_llm_api_options", path]
    assert json.loads(config) == {"mode": "exact_prefix"}
    assert options == {"kv_connector_config": CONNECTOR}


@pytest.mark.parametrize("flag", ["--extra_llm_api_options", "--config"])
def test_the_launcher_keeps_an_options_file_that_is_given(tmp_path, flag):
    given = tmp_path / "given.yaml"
    given.write_text("kv_cache_config:\n  tokens_per_block: 64\n", encoding="utf-8")
    for argv in ([flag, str(given), "M"], [f"{flag}={given}", "M"]):
        arguments, _, options = prepare(argv, {}, tmp_path)
        assert arguments == [flag, str(tmp_path / "options.json"), "M"]
        assert options["kv_cache_config"] == {"tokens_per_block": 64}
        assert options["kv_connector_config"] == CONNECTOR
    given.write_text("kv_connector_config:\n  connector_module: other\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="another connector"):
        prepare([flag, str(given)], {}, tmp_path)


def test_the_launcher_asks_for_the_manager_it_knows_where_there_is_a_choice(tmp_path):
    """Newer versions choose KVCacheManagerV2 by the model, and older ones refuse the key."""
    given = tmp_path / "given.yaml"
    for text, expected in (
        ("tokens_per_block: 64", {"tokens_per_block": 64, "use_kv_cache_manager_v2": False}),
        ("use_kv_cache_manager_v2: auto", {"use_kv_cache_manager_v2": "auto"}),
    ):
        given.write_text(f"kv_cache_config:\n  {text}\n", encoding="utf-8")
        _, _, options = prepare(["--config", str(given)], {}, tmp_path, choose_manager=True)
        assert options["kv_cache_config"] == expected
    _, _, options = prepare(["M"], {}, tmp_path, choose_manager=True)
    assert options["kv_cache_config"] == {"use_kv_cache_manager_v2": False}


def test_whether_there_is_a_choice_is_read_from_the_installation(tmp_path):
    assert not chooses_manager(tmp_path)
    (tmp_path / "llmapi").mkdir()
    settings = tmp_path / "llmapi" / "llm_args.py"
    settings.write_text("tokens_per_block: int = 32\n", encoding="utf-8")
    assert not chooses_manager(tmp_path)
    settings.write_text("use_kv_cache_manager_v2: bool = False\n", encoding="utf-8")
    assert chooses_manager(tmp_path)


def test_the_command_is_the_launcher():
    import tomllib

    from semblend.integration.trtllm import launcher

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"]["semblend-trtllm"] == f"{launcher.__name__}:{launcher.run.__name__}"


def test_the_launcher_names_the_extra_where_the_engine_is_missing(capsys):
    from semblend.integration.trtllm import launcher, upstream

    if upstream.connector_module() is not None:
        pytest.skip("TensorRT-LLM is installed here")
    with pytest.raises(SystemExit) as left:
        launcher.run()
    assert left.value.code == 2
    assert ".[trtllm]" in capsys.readouterr().err


def test_the_doctor_judges_what_is_here():
    result = CliRunner().invoke(app, ["doctor", "trtllm", folder_of("llama"), "--json"])
    findings = {one["check"]: one for one in json.loads(result.stdout)["findings"]}
    assert findings["TensorRT-LLM"]["verdict"] in ("refused", "note")
    assert findings["namespace"]["verdict"] == "ok"
    assert findings["engine"]["verdict"] == "ok"
    wrong = CliRunner().invoke(app, ["doctor", "trtllm", "--mode", "everything", "--json"])
    assert wrong.exit_code == 1
    assert "mode" in wrong.stdout


def test_sembench_reads_the_audit_stream(make):
    from sembench.engine_events.trtllm import TrtllmParser

    engine = make()
    document = random_tokens(200, seed=1)
    engine.run(joined(document, random_tokens(20, seed=2)))
    engine.executor.blocks.forget_cached()
    engine.run(joined(document, random_tokens(20, seed=3)))
    engine.scheduler.side.audit.flush()
    parser = TrtllmParser()
    for line in engine.audit_path.read_text(encoding="utf-8").splitlines():
        parser.feed(line)
    summary = parser.finish()
    assert summary.donor_registrations == 2
    assert summary.materialization_events == 1
    assert summary.materialized_tokens == 192
    assert summary.rope_corrections == 0
    assert summary.load_advertisements == 1


def test_what_was_saved_is_read_from_the_audit_stream(make):
    engine = make()
    document = random_tokens(200, seed=1)
    for tail in (2, 3):
        engine.run(joined(document, random_tokens(20, seed=tail)))
        engine.executor.blocks.forget_cached()
    engine.scheduler.side.audit.flush()
    asked = ["report", str(engine.audit_path), "--prefill-us-per-token", "10", "--json"]
    found = json.loads(CliRunner().invoke(app, asked).stdout)
    assert (found["total"]["requests"], found["total"]["reused_tokens"]) == (2, 192)
