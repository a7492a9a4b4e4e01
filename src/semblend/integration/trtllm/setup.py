"""Everything the scheduler side needs to know about the engine, worked out once at start."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

from semblend.core.settings import Settings
from semblend.integration.loaded_model.model_certificates import standing_for
from semblend.integration.loaded_model.model_cost import cost_model
from semblend.integration.loaded_model.model_identity import for_discovery
from semblend.integration.loaded_model.sentence_ends import boundaries_of
from semblend.integration.modes import CapturePolicy, Execution, Mode
from semblend.integration.probing import is_static
from semblend.integration.running_mode import RunningMode
from semblend.integration.scheduler.setup import CaptureRules, SchedulerSetup, may_load
from semblend.integration.scheduler.worker_link import WorkerLink
from semblend.integration.starting import Start
from semblend.integration.trtllm import namespaces
from semblend.integration.trtllm.engine_facts import EngineFacts
from semblend.integration.trtllm.options import ConnectorOptions
from semblend.planning.certificates import Standing
from semblend.planning.cost import CostModel

logger = logging.getLogger("semblend.trtllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedSetup(SchedulerSetup):
    """The shared side's view: ordinary requests are given exact prefixes, whatever the mode."""

    link: WorkerLink

    @property
    def may_load(self) -> bool:
        """Whether donor K/V is loaded at all; not before the ranks have a pool they know."""
        return self.link.is_ready and may_load(self.mode, self.settings, self.standing)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtSetup:
    """What is known about one engine."""

    options: ConnectorOptions
    facts: EngineFacts
    scheduler: LinkedSetup
    unknown_parts: tuple[str, ...]
    """Parts of the namespace; each is this process's own name then, and nothing is loaded."""
    start: Start
    objection: str | None
    """Why nothing is loaded at all, if so."""

    @property
    def ladder_objection(self) -> str | None:
        """Why no ladder is planned, if so."""
        if self.objection is not None:
            return self.objection
        if not self.options.mode.segmented:
            return f"mode {self.options.mode.value} serves no ladders"
        if self.facts.block_reuse is False:
            return "block reuse is off: a ladder climbs on it"
        return next(iter(self.scheduler.link.refusals), None)

    @property
    def running(self) -> RunningMode:
        """Which mode really runs, and why."""
        return RunningMode.of(
            self.options,
            settings=self.scheduler.settings,
            standing=self.scheduler.standing,
            model=str(self.facts.model),
            objection=self.objection,
            prefixes=True,
        )

    def described(self) -> dict[str, Any]:
        """What the audit stream says about it."""
        return {
            "mode": self.options.mode.value,
            "namespace": namespaces.shown(self.scheduler.namespace),
            "unknown_parts": list(self.unknown_parts),
            "refusals": list(map(str, self.start.refusals)),
            "may_load": self.objection is None,
            "certified": self.scheduler.certified,
            "block_size": self.scheduler.block_size,
            "ranks": self.scheduler.ranks,
        }

    @classmethod
    def of(
        cls, llm_args: Any, options: ConnectorOptions, link: WorkerLink, start: Start
    ) -> TrtSetup:
        """Read what is needed from the engine's arguments."""
        settings, facts = options.settings(), EngineFacts.of(llm_args)
        stated = namespaces.engine_namespace(facts, options, settings)
        objection = _objection(settings, start)
        scheduler = LinkedSetup(
            engine="trtllm",
            logger=logger,
            settings=settings,
            namespace=for_discovery(stated),
            mode=Mode.EXACT_PREFIX if objection is None else Mode.DISCOVERY_ONLY,
            execution=Execution.STAGED,
            block_size=facts.block_size or 1,
            ranks=facts.tensor_parallel or 1,
            hole_budget=0,
            step_tokens=0,
            plan_seconds=math.inf,  # a request is asked about once: no plan can wait a step
            cost=CostModel() if facts.text_config is None else cost_model(facts.text_config),
            # Ladders are copied by ranks that hold no table.
            standing=replace(standing_of(facts, options, settings), depth_table=None),
            boundaries=boundaries_of(lambda: _tokenizer(facts), logger),
            capture=CaptureRules(
                policy=CapturePolicy.ALL if options.register_donors else CapturePolicy.NONE,
                queue=options.capture_queue,
                min_prompt_tokens=options.min_prompt_tokens,
            ),
            audit=options.audit,
            link=link,
        )
        return cls(
            options=options,
            facts=facts,
            scheduler=scheduler,
            unknown_parts=stated.unknown_parts,
            start=start,
            objection=objection,
        )


def _objection(settings: Settings, start: Start) -> str | None:
    if not settings.enabled:
        return "SEMBLEND_ENABLED is 0"
    return "discovery_only" if settings.discovery_only else start.objection


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
