"""What is refused by name, and never silently left out: SGLang's own classes, no server."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from semblend.core.errors import MissingExtraError, UnsupportedModelError
from semblend.integration import engine_versions
from semblend.integration.sglang import radix_patcher
from semblend.integration.sglang.contract import contract_problems
from semblend.integration.sglang.diagnosis import SetupQuestion, diagnose
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.support import (
    _pool_refusals,
    feature_refusals,
    request_refusal,
    version_refusals,
)
from tests.integration.models import folder_of
from tests.integration.sglang.engines import environment

FLAGS = {
    "HiCache on several ranks": {"enable_hierarchical_cache": True, "tp_size": 2},
    "pipeline parallelism": {"pp_size": 2},
    "data parallelism": {"dp_size": 2},
    "speculative decoding": {"speculative_algorithm": "NGRAM"},
    "prefill/decode disaggregation": {"disaggregation_mode": "prefill"},
    "hierarchical cache with a storage backend": {
        "enable_hierarchical_cache": True,
        "hicache_storage_backend": "file",
    },
    "LMCache": {"enable_lmcache": True},
    "streaming sessions": {"enable_streaming_session": True},
    "mixed chunked prefill": {"enable_mixed_chunk": True},
    "two-batch overlap": {"enable_two_batch_overlap": True},
    "LoRA": {"enable_lora": True},
}


@pytest.fixture(scope="module", autouse=True)
def _cpu_sglang():
    from tests.integration.sglang.engines import SHIMS

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SGLANG_USE_CPU_ENGINE", "1")
        patched.syspath_prepend(str(SHIMS))
        yield


def test_the_installed_sglang_is_as_known():
    assert contract_problems() == []
    assert version_refusals() == []


@pytest.mark.parametrize("feature", FLAGS)
def test_flags_are_refused_by_name(feature):
    from sglang.srt.server_args import ServerArgs

    plain = ServerArgs(model_path=folder_of("llama"), device="cpu")
    assert feature not in {refusal.feature for refusal in feature_refusals(plain)}
    arguments = ServerArgs(model_path=folder_of("llama"), device="cpu", **FLAGS[feature])
    assert feature in {refusal.feature for refusal in feature_refusals(arguments)}


def test_pools_that_are_not_plain_are_refused_by_name():
    import torch

    names = {"kv_cache_layout": "nhd", "dtype": torch.float32, "store_dtype": torch.float32}
    names |= {"head_dim": 8, "v_head_dim": 8}
    plain = type("MHATokenToKVPool", (), names)
    assert _pool_refusals(plain()) == []
    for name, changes in (
        ("K/V layout hnd", {"kv_cache_layout": "hnd"}),
        ("quantised K/V cache (torch.float8_e5m2)", {"dtype": torch.float8_e5m2}),
        ("K and V of different widths", {"v_head_dim": 4}),
    ):
        (refusal,) = _pool_refusals(type("MHATokenToKVPool", (), {**names, **changes})())
        assert refusal.feature == name
    (refusal,) = _pool_refusals(type("MLATokenToKVPool", (), names)())
    assert refusal.feature == "K/V pool MLATokenToKVPool"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("input_embeds", {"input_embeds": [[0.0]]}),
        ("embed_overrides", {"positional_embed_overrides": object()}),
        ("multimodal", {"multimodal_inputs": object()}),
        ("lora", {"lora_id": "a"}),
        ("session", {"session_id": "a"}),
        ("prompt_logprobs", {"return_logprob": True, "logprob_start_len": 0}),
        ("hidden_states", {"return_hidden_states": True}),
        ("barred_from_the_tree", {"skip_radix_cache_insert": True}),
    ],
)
def test_requests_are_refused_by_name(name, changes):
    plain = {
        "input_embeds": None,
        "positional_embed_overrides": None,
        "multimodal_inputs": None,
        "lora_id": None,
        "session": None,
        "session_id": None,
        "return_logprob": False,
        "logprob_start_len": -1,
        "return_hidden_states": False,
        "skip_radix_cache_insert": False,
        "origin_input_ids": [1] * 50,
    }
    assert request_refusal(SimpleNamespace(**plain)) is None
    assert request_refusal(SimpleNamespace(**{**plain, **changes})) == name


def run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own: hooks stay where they are put."""
    import os

    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **environment(), **environ},
        capture_output=True,
        text=True,
    )


def test_patching_chooses_the_backend_and_keeps_what_the_user_states():
    done = run(
        "from semblend.integration.sglang.radix_patcher import patch_radix_cache\n"
        "print(patch_radix_cache(), patch_radix_cache())\n"
        "from sglang.srt.server_args import ServerArgs\n"
        "from semblend.integration.sglang.support import resolved\n"
        "for stated in (None, 'flexkv'):\n"
        f"    args = ServerArgs(model_path={folder_of('llama')!r}, device='cpu')\n"
        "    args.radix_cache_backend = stated\n"
        "    args.resolve_once()\n"
        "    print(resolved(args).radix_cache_backend)\n"
    )
    assert done.stdout.split() == ["semblend", "semblend", "semblend", "flexkv"], done.stderr


def test_the_hook_is_asked_for_before_anything_is_loaded():
    done = run(
        "from sglang.srt.managers.tp_worker import TpModelWorker\n"
        "from semblend.integration.sglang.forward_hook import is_installed\n"
        "from sglang.srt.plugins import load_plugins\n"
        "worker = object.__new__(TpModelWorker)\n"
        "print(is_installed(worker)); load_plugins(); print(is_installed(worker))\n"
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_patching_raises_with_the_reason_and_never_does_nothing_strictly(monkeypatch):
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")
    with (
        patch.object(engine_versions, "installed_version", lambda *_: None),
        pytest.raises(MissingExtraError, match="sglang"),
    ):
        radix_patcher.patch_radix_cache()
    monkeypatch.setenv("SGLANG_PLUGINS", "others")
    with pytest.raises(UnsupportedModelError, match="SGLANG_PLUGINS=others leaves"):
        radix_patcher.patch_radix_cache()


def test_the_doctor_names_what_would_be_refused():
    arguments = ("--model-path", folder_of("llama"), "--device", "cpu")
    fine = diagnose(
        SetupQuestion(
            config={"mode": "segmented_experimental"},
            arguments=(*arguments, "--attention-backend", "torch_native"),
        )
    )
    assert {finding.verdict.value for finding in fine} <= {"ok", "note"}, fine
    refused = diagnose(
        SetupQuestion(
            config={},
            arguments=(
                *("--model-path", folder_of("llama-dynamic"), "--device", "cpu"),
                "--enable-mixed-chunk",
            ),
        )
    )
    details = " ".join(finding.detail for finding in refused if finding.verdict == "refused")
    assert "mixed chunked prefill" in details
    assert "dynamic" in details


def test_policies_that_ask_for_a_probe_nobody_makes_are_refused():
    from semblend.integration.probing import can_probe
    from semblend.integration.refusals import policy_refusals

    def refused(policy: str) -> bool:
        options = {"mode": "segmented_experimental", "recompute_policy": policy}
        return bool(policy_refusals(BackendOptions.from_mapping(options), can_probe))

    assert not refused("none")
    assert not refused("edit_safe")
    assert not refused("query_attention"), "the tail's attention can be asked"
    assert refused("kv_deviation")
