"""Everything the scheduler side needs to know about the engine, worked out once at start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semblend.core.namespace import Namespace
from semblend.core.settings import Settings
from semblend.integration.certificates import standing_of, uncertified_standing
from semblend.integration.model_cost import cost_model
from semblend.integration.running_mode import RunningMode
from semblend.integration.vllm import namespaces
from semblend.integration.vllm.modes import Mode
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.sentence_ends import boundaries_of
from semblend.planning.boundaries import Boundaries
from semblend.planning.certificates import Standing
from semblend.planning.cost import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSetup:
    """The scheduler side's view of one engine."""

    config: Any
    """vLLM's VllmConfig."""
    options: ConnectorOptions
    settings: Settings
    namespace: Namespace
    block_size: int
    hash_block_size: int
    ranks: int
    hole_budget: int
    """Hole tokens one nested pass may compute."""
    cost: CostModel
    standing: Standing
    """What certificates say about the model; asked in mode `segmented` only."""
    boundaries: Boundaries | None
    may_load: bool

    @property
    def certified(self) -> bool:
        """Whether what is loaded stands under a certificate."""
        return self.standing.certificate is not None

    @property
    def running(self) -> RunningMode:
        """Which mode really runs, and why."""
        return RunningMode.of(
            self.options.mode,
            given="mode" in self.options.model_fields_set,
            settings=self.settings,
            standing=self.standing,
            model=str(self.config.model_config.model),
        )

    @classmethod
    def of(cls, config: Any, options: ConnectorOptions) -> SchedulerSetup:
        """Read what is needed from a VllmConfig."""
        settings = options.settings()
        namespace = namespaces.engine_namespace(config, options, settings)
        budget = int(config.scheduler_config.max_num_batched_tokens)
        if options.max_hole_tokens_per_step is not None:
            budget = min(budget, options.max_hole_tokens_per_step)
        standing = _standing(config.model_config, options, settings)
        cache = config.cache_config
        block_size = int(cache.block_size)
        return cls(
            config=config,
            options=options,
            settings=settings,
            namespace=namespace,
            block_size=block_size,
            hash_block_size=int(getattr(cache, "hash_block_size", None) or block_size),
            ranks=int(config.parallel_config.tensor_parallel_size),
            hole_budget=budget,
            cost=cost_model(config.model_config.hf_text_config),
            standing=standing,
            boundaries=boundaries_of(config.model_config) if options.mode.segmented else None,
            may_load=_may_load(options, settings, standing),
        )


def _standing(model_config: Any, options: ConnectorOptions, settings: Settings) -> Standing:
    look = standing_of if options.mode is Mode.SEGMENTED else uncertified_standing
    return look(
        str(model_config.model),
        model_config.hf_config,
        dtype=str(model_config.dtype).removeprefix("torch."),
        settings=settings,
        revision=model_config.revision,
    )


def _may_load(options: ConnectorOptions, settings: Settings, standing: Standing) -> bool:
    if settings.discovery_only or not options.mode.loads:
        return False
    return options.mode is not Mode.SEGMENTED or standing.certificate is not None
