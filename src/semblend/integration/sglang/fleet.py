"""An SGLang server as a member of a fleet: the plugin's entry point, with a fleet to join.

Where SEMBLEND_NATS_URL is set, the scheduler's process
announces the prompts its tree holds, and says so when the tree lets go of one. Where the server
publishes K/V events, each prompt is announced with its pages' names in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.membership import join
from semblend.integration.sglang import plugin
from semblend.integration.sglang.block_names import BlockNamer


def register() -> None:
    """Register backend and hook with SGLang, which calls this in each of its processes."""
    plugin.register()
    plugin.when_built(announce)


def announce(cache: Any) -> DonorAnnouncer | None:
    """Announce the donors of a server's radix cache, if there is a fleet.

    Raises
    ------
    SettingsError
        If the fleet's secret or address is not what it should be; the server does not start.
    """
    provider = cache.side.provider
    namer = BlockNamer.of(cache)

    def blocks(donor_id: str) -> Sequence[int]:
        donor = provider.donor(donor_id)
        return () if donor is None or namer is None else namer.names(donor)

    return join(
        provider.pipeline,
        provider.pipeline.settings,
        provider.namespace,
        blocks=None if namer is None else blocks,
    )
