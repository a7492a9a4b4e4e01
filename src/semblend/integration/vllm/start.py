"""How far the connector goes in the vLLM it finds itself in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm import __version__ as vllm_version

from semblend.integration.refusals import Refusal
from semblend.integration.starting import Start, start_of
from semblend.integration.vllm.contract import contract_problems
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.support import cache_refusals, engine_refusals, taken_traits
from semblend.integration.vllm.versions import VERSIONS


def vllm_start(
    connector: type,
    bases: Iterable[type],
    *,
    vllm_config: Any,
    kv_cache_config: Any | None,
    options: ConnectorOptions,
) -> Start:
    """Ask vLLM.

    Raises
    ------
    SettingsError
        If a setting is wrong.
    UnsupportedEngineError
        With SEMBLEND_STRICT_START, naming everything that stands in the way.
    """

    def discovery() -> Iterable[str]:
        return (f"vLLM {vllm_version}: {each}" for each in contract_problems(connector, bases))

    return start_of(
        options,
        options.settings(),
        loading=lambda: loading_refusals(vllm_config, kv_cache_config, options),
        discovery=discovery,
    )


def loading_refusals(
    vllm_config: Any, kv_cache_config: Any | None, options: ConnectorOptions
) -> Iterable[Refusal]:
    """Everything under which donor K/V must not be loaded."""
    yield from VERSIONS.refusals(vllm_version)
    yield from engine_refusals(vllm_config, options)
    if kv_cache_config is not None:
        yield from cache_refusals(kv_cache_config, taken_traits(vllm_config))
    if options.staged and not vllm_config.cache_config.enable_prefix_caching:
        yield Refusal(feature="prefix caching off", remedy="the staged ladder climbs on it")
