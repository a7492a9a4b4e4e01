"""A gateway names what keeps requests apart as the workers behind it do."""

from __future__ import annotations

import pytest

from semblend.core.namespace import salt_part
from semblend.integration.isolation import by_extra_key, by_salt
from semblend.integration.trtllm.namespaces import LAYOUT as TRTLLM_LAYOUT
from semblend.integration.vllm import namespaces as vllm_namespaces
from semblend.serve.gateway.placing import _salt_part


@pytest.mark.parametrize("salt", [None, "team-a", "team-a ", "none", " ", ""])
def test_a_salt_has_the_workers_own_name(salt: str | None) -> None:
    vllm = vllm_namespaces.isolation_of(salt)
    assert _salt_part(salt, None, "segments:layers,2,tokens,kv_heads,head_dim") == vllm
    assert _salt_part(salt, None, TRTLLM_LAYOUT) == by_salt(salt)
    sglang = by_extra_key("key", salt)
    assert _salt_part(salt, "key", "slots:nhd") == sglang
    assert _salt_part(salt, None, "layers,2,pages,page_size,kv_heads,head_dim") == salt_part(salt)
