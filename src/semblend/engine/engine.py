"""The embedded engine: a model, a pool, donors and one worker thread behind a small API.

engine = EmbeddedEngine.load("models/semblend-reference-27m")
request = GenerationRequest(request_id="1", tokens=tokens, namespace=engine.namespace())
for event in engine.submit(request).events():
    ...
engine.close()
"""

from __future__ import annotations

import logging
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from semblend.core.account import Accounts
from semblend.core.errors import RequestFieldError, SerialisationError
from semblend.core.namespace import NONE, Namespace, salt_part
from semblend.core.settings import DonorSharing, Settings
from semblend.core.tokens import as_token_array
from semblend.engine.admission import Admission
from semblend.engine.api import EngineStats, GenerationRequest
from semblend.engine.cache.chains import Chains
from semblend.engine.cache.donor_library import SEGMENT_TOKENS, DonorLibrary
from semblend.engine.cache.pool import PagedPool
from semblend.engine.cache.prefix_cache import PrefixCache
from semblend.engine.engine_thread import Worker
from semblend.engine.handle import RequestHandle
from semblend.engine.model import LoadedModel, load_model
from semblend.engine.options import EngineOptions
from semblend.engine.output.detokenise import StopStrings, StreamDecoder
from semblend.engine.output.emission import Emission
from semblend.engine.output.json_grammar import Grammars
from semblend.engine.output.sampling import make_generator
from semblend.engine.promotion import Promotion
from semblend.engine.scheduler import Scheduler
from semblend.engine.sequence import Sequence
from semblend.engine.shadow import Shadow
from semblend.engine.vocabulary_boundaries import boundaries_of
from semblend.kv.depth_drift import DepthDrift, read_table
from semblend.kv.tiers.disk import DiskTier
from semblend.kv.tiers.memory import MemoryTier
from semblend.kv.tiers.stack import TierStack
from semblend.pipeline import SemBlendPipeline
from semblend.planning.certificates import (
    Standing,
    certificate_folders,
    find_depth_table,
    look_up,
)
from semblend.planning.cost import CostModel

logger = logging.getLogger("semblend.engine")


class EmbeddedEngine:
    """Answers requests on its own thread. All public methods are thread-safe."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        options: EngineOptions | None = None,
        settings: Settings | None = None,
        certified_policy: str | None = None,
    ) -> None:
        """Start an engine around a loaded model. Usually called through :meth:`load`.

        Parameters
        ----------
        certified_policy
            The recompute policy to treat as certified. By default the model's certificate is
            looked up, and without a valid one plans are for discovery only.
        """
        self.model = model
        self.options = options or EngineOptions()
        self.settings = settings or Settings()
        self.pool = PagedPool(
            model.kv_shape,
            capacity_bytes=self.options.pool_bytes,
            page_size=self.options.page_size,
            device=model.device,
        )
        self.standing = (
            Standing() if certified_policy is not None else _standing(model, self.settings)
        )
        policy = certified_policy or self.standing.policy
        boundaries = boundaries_of(model.tokenizer)
        self.pipeline = SemBlendPipeline(
            self.settings,
            cost=_cost_model(model),
            certified_policy=policy,
            certified_until=self.standing.until,
            uncertified=self.standing.refusal,
            boundaries=boundaries,
        )
        self._grammars = Grammars(
            model.tokenizer, vocab_size=model.vocab_size, eos_token_ids=model.eos_token_ids
        )
        self._accounts = Accounts(ledger=self.pipeline.ledger)
        self._prefixes = (
            PrefixCache(self.pool.allocator, self.pool.page_size)
            if self.options.prefix_cache
            else None
        )
        self.shadow = Shadow(
            model=model,
            pool=self.pool,
            rate=self.settings.shadow_rate,
            step_tokens=self.options.step_tokens,
            prefixes=self._prefixes,
        )
        self._chains = (
            Chains(
                self.pool.allocator,
                self.pool.page_size,
                max_pages=int(self.options.chain_share * self.pool.allocator.total),
                max_turns=min(self.options.chain_turns, self.standing.chain_turns),
                prefix_cache=self._prefixes is not None,
            )
            if self.options.chain_share
            else None
        )
        self._tiers = _make_tiers(self.options, model)
        self.donors = DonorLibrary(
            pool=self.pool,
            pipeline=self.pipeline,
            tiers=self._tiers,
            queued=self.options.capture_queue,
            stored=self._wake,  # when idle, it replaces the memory that was used
        )
        admission = Admission(
            model=model,
            pool=self.pool,
            prefixes=self._prefixes,
            pipeline=self.pipeline,
            donors=self.donors,
            boundaries=boundaries,
            shadow=self.shadow,
            drift=_drift(model, self.standing, self.settings),
            chains=self._chains,
        )
        self.promotion = (
            Promotion(
                model=model,
                pool=self.pool,
                prefixes=self._prefixes,
                chains=self._chains,
                donate=self.donors.offer,
                step_tokens=self.options.promotion_tokens,
            )
            if self._chains is not None
            else None
        )
        if self.promotion is not None:
            self.shadow.keep = self.promotion.keep
        self._emission = Emission(
            pool=self.pool,
            prefixes=self._prefixes,
            admission=admission,
            eos_token_ids=model.eos_token_ids,
            donate=self.donors.offer,
            min_donor_tokens=self.settings.min_span_tokens,
            finished=lambda sequence: self._worker.forget(sequence),
            certified=policy is not None,
            shadow=self.shadow,
            chains=self._chains,
        )
        self._worker = Worker(
            Scheduler(
                model=model,
                pool=self.pool,
                options=self.options,
                admission=admission,
                emission=self._emission,
            ),
            max_waiting=self.options.max_waiting,
            background=self._use_time,
        )

    @classmethod
    def load(
        cls,
        model: str,
        *,
        options: EngineOptions | None = None,
        settings: Settings | None = None,
        certified_policy: str | None = None,
    ) -> Self:
        """Load a model by folder or hub name and start.

        Raises
        ------
        UnsupportedModelError, UnsupportedRotaryError
            Naming the unsupported feature of the model.
        """
        options = options or EngineOptions()
        loaded = load_model(model, device=options.device, dtype=options.dtype)
        return cls(loaded, options=options, settings=settings, certified_policy=certified_policy)

    @property
    def tokenizer(self) -> Any:
        """The model's Hugging Face tokenizer."""
        return self.model.tokenizer

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt this engine takes, with room for one output token."""
        return min(self.model.max_positions - 1, self.pool.capacity_tokens)

    def namespace(
        self,
        *,
        tenant: str | None = None,
        template: str | None = None,
        cache_salt: str | None = None,
        principal: str | None = None,
    ) -> Namespace:
        """The namespace of a request. Omitted parts are this engine's defaults.

        `principal` is who sent it within the tenant. Principals share donors only if
        SEMBLEND_SHARE_DONORS says so.
        """
        dtype = str(self.model.kv_shape.dtype).removeprefix("torch.")
        alone = self.settings.share_donors is not DonorSharing.TENANT
        everybody = Namespace(
            model=self.model.name,
            model_revision=self.model.fingerprint,
            tokenizer=self.model.name,
            tokenizer_revision=self.model.tokenizer_fingerprint,
            kv_dtype=dtype,
            cache_dtype=dtype,
            quantization=NONE,
            adapter=NONE,
            rope=self.model.rope,
            tensor_parallel=1,
            block_size=self.options.page_size,
            cache_layout="layers,2,pages,page_size,kv_heads,head_dim",
            tenant=tenant or self.settings.donor_tenant,
            template=template or self.settings.donor_template,
            cache_salt=salt_part(cache_salt),
        )
        return everybody.for_principal(principal if alone else None)

    def submit(self, request: GenerationRequest) -> RequestHandle:
        """Queue one request.

        Raises
        ------
        RequestError
            If it is malformed, can never fit, or too many requests are waiting.
        """
        tokens = as_token_array(request.tokens)
        size, limit = len(tokens), self.max_prompt_tokens
        if not 1 <= size <= limit:
            raise RequestFieldError(
                "tokens", f"expected a prompt of 1 to {limit} tokens, got {size}"
            )
        if int(tokens.max()) >= self.model.vocab_size:
            raise RequestFieldError(
                "tokens", f"expected ids below {self.model.vocab_size}, got {int(tokens.max())}"
            )
        namespace, sampling = request.namespace, request.sampling
        for token_id, _ in sampling.logit_bias:
            if not 0 <= token_id < self.model.vocab_size:
                raise RequestFieldError(
                    "logit_bias", f"expected ids below {self.model.vocab_size}, got {token_id}"
                )
        schema = sampling.json_schema
        grammar = None if schema is None else self._grammars.of_schema(schema)
        sequence = Sequence(
            request=replace(request, tokens=tokens),
            handle=RequestHandle(request.request_id, on_cancel=self._wake),
            share_key=self.pipeline.share_key(namespace) if namespace.is_complete else None,
            max_new_tokens=min(
                sampling.max_tokens,
                self.model.max_positions - size,
                self.pool.capacity_tokens - size + 1,
            ),
            decoder=StreamDecoder(self.model.tokenizer),
            stops=StopStrings(sampling.stop),
            generator=make_generator(sampling),
            account=self._accounts.open(request.request_id, prompt_tokens=size),
            grammar=grammar,
        )
        self._worker.submit(sequence)
        return sequence.handle

    @property
    def failure(self) -> str | None:
        """Why this engine no longer answers requests; None while it does."""
        return None if self._worker.alive else "the engine's thread has ended"

    def stats(self) -> EngineStats:
        """A snapshot for metrics and the page."""
        pipeline, tiers, shadow = self.pipeline.stats(), self._tiers.stats(), self.shadow.stats()
        return EngineStats(
            running=self._worker.running,
            waiting=self._worker.waiting,
            pool_pages=self.pool.allocator.total,
            pool_pages_free=self.pool.allocator.free,
            donors=len(self.donors),
            tier_bytes={tier.name: tier.used_bytes for tier in tiers},
            tier_capacity_bytes={tier.name: tier.capacity_bytes for tier in tiers},
            index_bytes=pipeline.index_bytes,
            index_capacity_bytes=pipeline.index_capacity_bytes,
            requests={outcome.value: n for outcome, n in pipeline.ledger.requests.items()},
            tokens=self._emission.tokens_by_source(),
            reasons={reason.value: n for reason, n in pipeline.ledger.reasons.items()},
            evictions=pipeline.evictions,
            registrations=pipeline.registrations,
            certified=self.pipeline.certified,
            certificate=self.standing.detail,
            certificate_until="" if (until := self.standing.until) is None else until.isoformat(),
            shadow_samples=shadow.samples,
            shadow_divergence=shadow.divergence,
            shadow_disagreement=shadow.disagreement,
            suspended_namespaces=shadow.suspended,
            chains=0 if self._chains is None else len(self._chains),
            chain_bytes=0 if self._chains is None else self._chains.pages * self.pool.page_bytes,
            promoted_tokens=0 if self.promotion is None else self.promotion.computed_tokens,
            mode=_mode(self.settings),
            loading=self.pipeline.may_load,
            captures_skipped=self.donors.skipped,
            captures_waiting=self.donors.waiting,
        )

    def flush_prefix_cache(self) -> int:
        """Drop all exactly cached pages, and chains. Returns how many pages were cached."""
        return self._worker.call(self._flush)

    def _flush(self) -> int:
        if self._chains is not None:
            self._chains.clear()
        return 0 if self._prefixes is None else self._prefixes.clear()

    def drop_donors(self) -> int:
        """Drop all donors and return how many there were."""
        return self.donors.clear()

    def resume_reuse(self, namespace: Namespace | None = None) -> int:
        """Turn reuse on again where shadow samples turned it off. Returns the number of namespaces.

        Without a namespace, this applies everywhere. Monitoring starts afresh.
        """
        return self.shadow.resume(None if namespace is None else self.pipeline.share_key(namespace))

    def close(self) -> None:
        """Cancel running requests, stop the threads and free the donors. Idempotent."""
        self._worker.close()
        self.shadow.close()
        self.donors.close()
        self._tiers.close()
        self.pipeline.close()

    def _wake(self) -> None:
        self._worker.wake()

    def _use_time(self, busy: bool) -> bool:
        """Use time between steps for a shadow sample and, when idle, promotion or donor memory."""
        if self.shadow.turn(busy=busy):
            return True
        if not busy and self.promotion is not None and self.promotion.turn():
            return True
        return not busy and self.donors.prepare(longest=self.max_prompt_tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _mode(settings: Settings) -> str:
    """The adapters' name for what the settings ask for."""
    if settings.discovery_only or not settings.enabled:
        return "discovery_only"
    return "segmented_experimental" if settings.allow_uncertified else "segmented"


def _standing(model: LoadedModel, settings: Settings) -> Standing:
    """What certificates say about the model. Logged once.

    A policy set explicitly for an experiment is not the certified one.
    """
    if settings.allow_uncertified and "recompute_policy" in settings.model_fields_set:
        return Standing(detail=f"an experiment with {settings.recompute_policy}")
    dtype = str(model.kv_shape.dtype).removeprefix("torch.")
    standing = look_up(
        model.fingerprint,
        dtype=dtype,
        quantization=NONE,
        kv_format=NONE,
        speculation=NONE,
        folders=certificate_folders(settings.certificate_dir),
        key=settings.certificate_key,
    )
    if standing.certificate is not None:
        logger.info(
            "reuse of %s is certified: %s, until %s",
            model.name,
            standing.certificate.policy,
            standing.certificate.expires,
        )
    elif not settings.allow_uncertified:
        logger.warning("%s: discovery only: %s", model.name, standing.detail)
    return standing


def _drift(model: LoadedModel, standing: Standing, settings: Settings) -> DepthDrift | None:
    """The model's depth-drift table: its certificate's or, for experiments, any that exists."""
    dtype = str(model.kv_shape.dtype).removeprefix("torch.")
    folders = certificate_folders(settings.certificate_dir)
    path = standing.depth_table or find_depth_table(model.fingerprint, dtype, folders)
    if path is None:
        return None
    try:
        return read_table(path).to(model.device)
    except SerialisationError as error:
        # Policies that need it are declined by name. Nothing else needs a table.
        logger.warning("no depth-drift correction: %s", error)
        return None


def _make_tiers(options: EngineOptions, model: LoadedModel) -> TierStack:
    """Host memory, with the device above it and disk below it if requested."""
    host = MemoryTier.on_host(
        capacity_bytes=options.host_donor_bytes,
        segment_bytes=SEGMENT_TOKENS * model.kv_shape.token_bytes,
    )
    memory = [host]
    if options.device_donor_bytes:
        above = MemoryTier.on_device(capacity_bytes=options.device_donor_bytes, device=model.device)
        memory.insert(0, above)
    disk = None
    if options.disk_donor_bytes and options.donor_folder is not None:
        disk = DiskTier(options.donor_folder, capacity_bytes=options.disk_donor_bytes)
    return TierStack(memory, disk)


def _cost_model(model: LoadedModel) -> CostModel:
    """The planner's cost model for this model. Embeddings cost no matrix product."""
    embedding = model.model.get_input_embeddings().weight.numel()
    parameters = sum(parameter.numel() for parameter in model.model.parameters())
    config = model.model.config
    return CostModel.for_model(
        parameters=max(1, parameters - embedding),
        layers=model.kv_shape.layers,
        query_heads=config.num_attention_heads,
        head_dim=model.kv_shape.head_dim,
    )
