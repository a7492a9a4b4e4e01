"""How an engine adapter whose donors live in a pipeline joins a fleet.

The pipeline's store reports, in order, what it holds, and that is announced. An adapter's
`fleet` module calls :func:`join`.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from typing import Any

from semblend.core.errors import MissingExtraError
from semblend.core.namespace import Namespace
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray
from semblend.fleet.announcer import BlockNames, DonorAnnouncer, DonorKeeper, HeldDonor
from semblend.fleet.keys import fleet_secret
from semblend.fleet.publish.jetstream import JetStreamSink
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.publish.plain import PlainSink
from semblend.fleet.publish.publisher import PublisherOptions
from semblend.fleet.publish.sink import EventSink
from semblend.pipeline import SemBlendPipeline

logger = logging.getLogger("semblend.fleet")


class PipelineLibrary:
    """A pipeline's donors as a library that announcers follow. Thread-safe."""

    def __init__(self, pipeline: SemBlendPipeline) -> None:
        self._held: dict[str, HeldDonor] = {}
        self._listeners: list[Any] = []
        self._lock = threading.Lock()
        pipeline.follow(self)

    def __len__(self) -> int:
        return len(self._held)

    def inventory(self) -> list[HeldDonor]:
        """Every donor held now."""
        with self._lock:
            return list(self._held.values())

    def add_listener(self, listener: Any) -> None:
        """Register for `donor_kept` and `donor_lost`."""
        self._listeners.append(listener)

    def donor_kept(self, donor_id: str, tokens: TokenArray, namespace: bytes) -> None:
        """The store holds a new donor."""
        with self._lock:
            self._held[donor_id] = (donor_id, tokens, namespace)
        for listener in self._listeners:
            listener.donor_kept(donor_id, tokens, namespace)

    def donor_lost(self, donor_id: str) -> None:
        """The store dropped a donor."""
        with self._lock:
            known = self._held.pop(donor_id, None) is not None
        if known:
            for listener in self._listeners:
                listener.donor_lost(donor_id)


def worker_name(settings: Settings) -> str:
    return settings.worker_id or f"{socket.gethostname()}-{os.getpid()}"


def announce(
    library: DonorKeeper,
    settings: Settings,
    namespace: Namespace,
    *,
    worker_id: str,
    dp_rank: int = 0,
    blocks: BlockNames | None = None,
    publisher: PublisherOptions | None = None,
) -> tuple[DonorAnnouncer, bytes]:
    """Announce a library's donors; also the secret that their fingerprints are made with.

    They are said on the plain subject, for whoever listens. With a secret they also go to the
    fleet's log, and tenants are hashed in both.

    Raises
    ------
    SettingsError
        If a secret is given and is too short to be one, or an address is none.
    """
    options = LogOptions(url=settings.nats_url, subject=settings.nats_subject)
    has_secret = bool(settings.namespace_secret)
    secret = fleet_secret(settings.namespace_secret) if has_secret else secrets.token_bytes(32)

    def announcer(sink: EventSink, beside: DonorAnnouncer | None = None) -> DonorAnnouncer:
        return DonorAnnouncer(
            library,
            sink,
            worker_id=worker_id,
            dp_rank=dp_rank,
            secret=secret,
            plain=not has_secret,
            beside=beside,
            namespace=namespace,
            sampling=settings.fleet_sampling,
            blocks=blocks,
            options=publisher,
        )

    if has_secret:
        log = JetStreamSink(options, worker_id=worker_id, dp_rank=dp_rank)
        return announcer(log, announcer(PlainSink(options))), secret
    logger.warning(
        "SEMBLEND_NAMESPACE_SECRET is not set: events go to the plain subject %s, with tenant and "
        "template as configured; the fleet's log, gateways and SEMBLEND_TRANSPORT need the secret "
        "and are off (docs/fleet.md)",
        options.subject,
    )
    return announcer(PlainSink(options)), secret


def join(
    pipeline: SemBlendPipeline,
    settings: Settings,
    namespace: Namespace,
    *,
    dp_rank: int = 0,
    blocks: BlockNames | None = None,
) -> DonorAnnouncer | None:
    """Announce a pipeline's donors, if SEMBLEND_NATS_URL says where; see :func:`announce`.

    `blocks` names a donor's blocks if donors live in the engine's own cache.

    Raises
    ------
    SettingsError
        If the fleet's secret or the address is not what it should be.
    MissingExtraError
        With SEMBLEND_STRICT_START, if the client of NATS is not installed; without, a line says so.
    """
    if not settings.nats_url:
        return None
    try:
        announcer, _ = announce(
            PipelineLibrary(pipeline),
            settings,
            namespace,
            worker_id=worker_name(settings),
            dp_rank=dp_rank,
            blocks=blocks,
        )
    except MissingExtraError as error:
        if settings.strict_start:
            raise
        logger.warning("SemBlend announces no donors: %s", error)
        return None
    return announcer
