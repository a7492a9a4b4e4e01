"""The embedded engine as a fleet member: announces its donors and can fetch others'."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

import numpy as np

from semblend.core.namespace import Namespace
from semblend.core.settings import Settings
from semblend.engine.api import EngineStats, GenerationRequest, SamplingParams
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.handle import RequestHandle
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.log_follower import LogFollower
from semblend.fleet.membership import announce, worker_name
from semblend.fleet.placement.expected_time import FleetCost
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.publish.publisher import PublisherOptions
from semblend.fleet.transport.exporting import DonorExporter
from semblend.fleet.transport.importing import DonorImporter, Fetch
from semblend.fleet.transport.shelf import SharedShelf
from semblend.fleet.transport.store import open_store

logger = logging.getLogger("semblend.fleet")

_WARM_UP_TOKENS = 512


class FleetMember:
    """An engine that other workers know about. Serves like the engine itself.

    Without SEMBLEND_TRANSPORT it only announces. With it, its donors are shared, and before a
    prompt is submitted, another worker's donor is fetched if that pays.
    """

    def __init__(
        self,
        engine: EmbeddedEngine,
        settings: Settings,
        *,
        publisher: PublisherOptions | None = None,
        cost: FleetCost | None = None,
    ) -> None:
        """Join the fleet.

        Raises
        ------
        SettingsError
            If the fleet's secret or an address is malformed.
        """
        self.engine = engine
        self.worker_id = worker_name(settings)
        options = LogOptions(url=settings.nats_url, subject=settings.nats_subject)
        self.importer: DonorImporter | None = None
        self.exporter: DonorExporter | None = None
        self._leaving = ExitStack()
        self.announcer, secret = announce(
            engine.donors,
            settings,
            engine.namespace(),
            worker_id=self.worker_id,
            publisher=publisher,
        )
        self._leaving.callback(self.announcer.close)
        if settings.transport and settings.namespace_secret:
            self._share(settings, options, secret, cost or measured_cost(engine, settings))
        _log("joined", worker=self.worker_id, transport=settings.transport.partition(":")[0])

    def _share(
        self, settings: Settings, options: LogOptions, secret: bytes, cost: FleetCost
    ) -> None:
        store = open_store(settings.transport)
        shelf = SharedShelf(
            store,
            max_bytes=settings.transport_bytes,
            ttl_s=settings.transport_ttl_s,
            gone=self._withdrawn,
        )
        self.exporter = DonorExporter(
            self.engine.donors, shelf, self.announcer, worker_id=self.worker_id, secret=secret
        )
        self._leaving.callback(self.exporter.close)
        directory = Directory()
        self._leaving.callback(LogFollower(directory, options).close)
        self.directory = directory
        self.importer = DonorImporter(
            self.engine.donors,
            store,
            directory,
            worker_id=self.worker_id,
            secret=secret,
            cost=cost,
            sampling=settings.fleet_sampling,
        )

    def _withdrawn(self, donor_id: str) -> None:
        if self.exporter is not None:
            self.exporter.withdrawn(donor_id)

    # -- serving -------------------------------------------------------------------

    @property
    def tokenizer(self) -> Any:
        return self.engine.tokenizer

    @property
    def max_prompt_tokens(self) -> int:
        return self.engine.max_prompt_tokens

    @property
    def failure(self) -> str | None:
        return self.engine.failure

    def submit(self, request: GenerationRequest) -> RequestHandle:
        """Fetch a donor if that pays, then queue the request."""
        if self.importer is not None and request.reuse:
            fetch: Fetch = self.importer.prepare(request.tokens, request.namespace)
            if fetch.fetched:
                _log("fetched", tokens=fetch.tokens, ms=round(fetch.seconds * 1e3, 1))
        return self.engine.submit(request)

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def resume_reuse(self) -> int:
        """Passed to the engine, which holds the K/V and watches it."""
        return self.engine.resume_reuse()

    def namespace(
        self,
        *,
        tenant: str | None = None,
        template: str | None = None,
        cache_salt: str | None = None,
        principal: str | None = None,
    ) -> Namespace:
        return self.engine.namespace(
            tenant=tenant, template=template, cache_salt=cache_salt, principal=principal
        )

    def close(self) -> None:
        """Withdraw what is shared, leave the fleet and stop. The caller still closes the engine."""
        self._leaving.close()


def _log(event: str, **fields: object) -> None:
    logger.info(event, extra={"fields": fields})


def measured_cost(engine: EmbeddedEngine, settings: Settings) -> FleetCost:
    """Measure this engine's prefill cost with one prompt."""
    size = min(_WARM_UP_TOKENS, engine.max_prompt_tokens)
    tokens = (np.arange(size) % engine.model.vocab_size).astype(np.int32)
    seconds = []
    for attempt in range(2):
        request = GenerationRequest(
            request_id=f"fleet-warm-up-{attempt}",
            # A new prompt each time: a repeated one would come from the prefix cache.
            tokens=np.roll(tokens, attempt + 1),
            namespace=engine.namespace(cache_salt="fleet-warm-up"),
            sampling=SamplingParams(max_tokens=1),
            reuse=False,
            donate=False,
        )
        seconds.append(engine.submit(request).result().report.prefill_ms / 1e3)
    return FleetCost(
        seconds_per_token=max(1e-7, min(seconds) / size),
        kv_bytes_per_token=engine.model.kv_shape.token_bytes,
        transfer_bytes_per_s=settings.transport_bytes_per_s,
    )
