"""What the scheduler side needs from a VllmConfig, computed once at start."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from semblend.integration.loaded_model.model_certificates import standing_for
from semblend.integration.loaded_model.model_cost import cost_model
from semblend.integration.modes import Provider
from semblend.integration.running_mode import RunningMode
from semblend.integration.scheduler.setup import CaptureRules, Decoder, SchedulerSetup
from semblend.integration.starting import UNHINDERED, Start
from semblend.integration.vllm import namespaces
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.tokenizer import boundaries_of, decoder_of

logger = logging.getLogger("vllm.semblend")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSetup:
    """One engine and what was asked of it."""

    config: Any
    """vLLM's VllmConfig."""
    asked: ConnectorOptions
    start: Start
    scheduler: SchedulerSetup
    hash_block_size: int

    @property
    def options(self) -> ConnectorOptions:
        """What was asked for, as far as it may be carried out."""
        return self.start.allowed(self.asked)

    @property
    def running(self) -> RunningMode:
        """The mode that really runs, and why."""
        return RunningMode.of(
            self.asked,
            settings=self.asked.settings(),
            standing=self.scheduler.standing,
            model=str(self.config.model_config.model),
            objection=self.start.objection,
        )

    @classmethod
    def of(cls, config: Any, asked: ConnectorOptions, start: Start = UNHINDERED) -> VllmSetup:
        """Read what is needed from a VllmConfig."""
        block_size = int(config.cache_config.block_size)
        return cls(
            config=config,
            asked=asked,
            start=start,
            scheduler=_scheduler_setup(config, start.allowed(asked), block_size),
            hash_block_size=int(
                getattr(config.cache_config, "hash_block_size", None) or block_size
            ),
        )


def _scheduler_setup(config: Any, options: ConnectorOptions, block_size: int) -> SchedulerSetup:
    settings, model = options.settings(), config.model_config
    step_tokens = int(config.scheduler_config.max_num_batched_tokens)
    most = options.max_hole_tokens_per_step

    def decoder() -> Decoder:
        return decoder_of(model)

    return SchedulerSetup(
        engine="vllm",
        logger=logger,
        settings=settings,
        namespace=namespaces.engine_namespace(config, options, settings),
        mode=options.mode,
        execution=options.execution,
        block_size=block_size,
        ranks=int(config.parallel_config.tensor_parallel_size),
        hole_budget=step_tokens if most is None else min(step_tokens, most),
        step_tokens=step_tokens,
        cost=cost_model(model.hf_text_config),
        standing=standing_for(
            options.mode,
            str(model.model),
            model.hf_config,
            dtype=str(model.dtype).removeprefix("torch."),
            settings=settings,
            revision=model.revision,
            can_run=None,  # whatever a policy asks of an engine, this one answers
            **namespaces.asked_at_load(config),
        ),
        boundaries=boundaries_of(model) if options.mode.segmented else None,
        capture=CaptureRules(
            policy=options.capture,
            sample_ratio=options.capture_sample_ratio,
            queue=options.capture_queue,
            min_prompt_tokens=options.min_prompt_tokens,
        ),
        chain_turns=options.chain_turns,
        # Our passes compute no K/V of a drafter, which would miss in what they publish.
        promotes=options.promote_chains and getattr(config, "speculative_config", None) is None,
        audit=options.audit,
        make_decoder=decoder if options.provider is Provider.SEMBLEND else None,
    )
