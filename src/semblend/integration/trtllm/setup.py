"""Everything the scheduler side needs to know about the engine, worked out once at start."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from semblend.core.namespace import Namespace
from semblend.core.settings import Settings
from semblend.integration.model_cost import cost_model
from semblend.integration.probing import is_static
from semblend.integration.running_mode import RunningMode
from semblend.integration.scheduler.setup import standing_for
from semblend.integration.sentence_ends import boundaries_of
from semblend.integration.trtllm import namespaces
from semblend.integration.trtllm.engine_facts import EngineFacts
from semblend.integration.trtllm.options import ConnectorOptions
from semblend.integration.trtllm.provider import SemBlendKvProvider
from semblend.integration.trtllm.support import engine_refusals
from semblend.planning.certificates import Standing

logger = logging.getLogger("semblend.trtllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSetup:
    """The scheduler side's view of one engine."""

    options: ConnectorOptions
    settings: Settings
    facts: EngineFacts
    namespace: Namespace
    """Complete; where a part is not known it is this process's own, and nothing is loaded."""
    unknown_parts: tuple[str, ...]
    refusals: tuple[str, ...]
    standing: Standing
    provider: SemBlendKvProvider
    block_size: int
    ranks: int

    @property
    def certified(self) -> bool:
        """Whether ladders stand under a certificate."""
        return self.standing.certificate is not None

    @property
    def objection(self) -> str | None:
        """Why nothing is loaded at all, if so."""
        if not self.settings.enabled:
            return "SEMBLEND_ENABLED is 0"
        if not self.options.mode.loads or self.settings.discovery_only:
            return "discovery_only"
        if self.unknown_parts:
            return f"unknown parts of the namespace: {', '.join(self.unknown_parts)}"
        return self.refusals[0] if self.refusals else None

    @property
    def may_load(self) -> bool:
        """Whether exact prefixes may be loaded."""
        return self.objection is None

    @property
    def may_capture(self) -> bool:
        """Whether prompts' K/V is kept."""
        return self.objection is None

    @property
    def ladder_objection(self) -> str | None:
        """Why no ladder is planned, if so."""
        if self.objection is not None:
            return self.objection
        if not self.options.mode.segmented:
            return f"mode {self.options.mode.value} serves no ladders"
        if self.facts.block_reuse is False:
            return "block reuse is off: a ladder climbs on it"
        return None

    @property
    def running(self) -> RunningMode:
        """Which mode really runs, and why."""
        return RunningMode.of(
            self.options.mode,
            given="mode" in self.options.model_fields_set,
            settings=self.settings,
            standing=self.standing,
            model=str(self.facts.model),
            objection=self.objection,
            prefixes=True,
        )

    def described(self) -> dict[str, Any]:
        """What the audit stream says about it."""
        return {
            "mode": self.options.mode.value,
            "namespace": namespaces.shown(self.namespace),
            "unknown_parts": list(self.unknown_parts),
            "refusals": list(self.refusals),
            "may_load": self.may_load,
            "certified": self.certified,
            "block_size": self.block_size,
            "ranks": self.ranks,
        }

    @classmethod
    def of(cls, llm_args: Any, options: ConnectorOptions) -> SchedulerSetup:
        """Read what is needed from the engine's arguments."""
        settings = options.settings()
        facts = EngineFacts.of(llm_args)
        stated = namespaces.engine_namespace(facts, options, settings)
        namespace = namespaces.for_discovery(stated)
        refusals = tuple(map(str, engine_refusals(llm_args, facts, options)))
        standing = standing_of(facts, options, settings)
        block_size = facts.block_size or 1
        return cls(
            options=options,
            settings=settings,
            facts=facts,
            namespace=namespace,
            unknown_parts=stated.unknown_parts,
            refusals=refusals,
            standing=standing,
            provider=SemBlendKvProvider(
                namespace,
                settings,
                block_size=block_size,
                cost=None if facts.text_config is None else cost_model(facts.text_config),
                standing=standing,
                boundaries=boundaries_of(lambda: _tokenizer(facts), logger),
            ),
            block_size=block_size,
            ranks=facts.tensor_parallel or 1,
        )


def _tokenizer(facts: EngineFacts) -> Any:
    if facts.tokenizer is None:
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(facts.tokenizer, local_files_only=True)


def standing_of(facts: EngineFacts, options: ConnectorOptions, settings: Settings) -> Standing:
    """What certificates say about the model, where it is known."""
    if facts.model is None or facts.hf_config is None:
        return Standing()
    return standing_for(
        options.mode,
        facts.model,
        facts.hf_config,
        dtype=facts.dtype or "unknown",
        settings=settings,
        revision=facts.revision,
        quantization=facts.added_quantization,
        can_run=is_static,
    )
