"""An SGLang server as a member of a fleet: the plugin's entry point, with a fleet to join.

The adapter knows nothing of fleets. Where SEMBLEND_NATS_URL is set, the scheduler's process
announces the prompts its tree holds, and says so when the tree lets go of one.
"""

from __future__ import annotations

from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.membership import join
from semblend.integration.sglang import plugin
from semblend.integration.sglang.provider import SemBlendProvider


def register() -> None:
    """Register backend and hook with SGLang, which calls this in each of its processes."""
    plugin.register()
    plugin.when_built(announce)


def announce(provider: SemBlendProvider) -> DonorAnnouncer | None:
    """Announce what a server's donors are, if there is a fleet.

    Raises
    ------
    SettingsError
        If the fleet's secret or address is not what it should be; the server does not start.
    """
    return join(provider.pipeline, provider.pipeline.settings, provider.namespace)
