"""SGLang as it may be one day: changes made in the scheduler's process before it starts."""

from __future__ import annotations

import logging
from typing import Any

SAID: list[str] = []
"""Lines that say how far SemBlend goes, warnings and above."""


def listen() -> None:
    """Keep what is said at start."""
    handle = logging.Logger.handle

    def recorded(logger: logging.Logger, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and record.getMessage().startswith("SemBlend runs"):
            SAID.append(record.getMessage())
        handle(logger, record)

    logging.Logger.handle = recorded  # type: ignore[method-assign]


def said(_host: Any) -> list[str]:
    """For a test to ask."""
    return SAID


def tree_of(host: Any) -> str:
    """The class of the engine's cache."""
    return type(host.cache).__name__


def unknown_version() -> None:
    """A release nobody has seen, with interfaces as they are known."""
    from semblend.integration import engine_versions

    engine_versions.installed_version = lambda *_: "0.9.0"


def missing_member() -> None:
    """The tree no longer says when it lets go of slots."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchResult

    fields = tuple(name for name in MatchResult._fields if name != "host_hit_length")
    MatchResult._fields = fields  # what the probe reads; the class itself goes on working


def missing_hook() -> None:
    """SGLang has no hooks around functions any more."""
    from semblend.integration.sglang import plugin

    plugin._register_hook = lambda: None


def unreadable_model() -> None:
    """Something about the model cannot be read."""
    from semblend.integration.sglang import setup

    def cost_model(_: Any) -> Any:
        raise AttributeError("this configuration has no hidden_size")

    setup.cost_model = cost_model


def hicache_on_cpu() -> None:
    """HiCache's copies without a GPU: plain ones in place of its kernels, and no pinned memory.

    Tree, controller, host pool, queues and acknowledgements are SGLang's own.
    """
    from sglang.srt.mem_cache.pool_host import common
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost as Host

    def backup(self: Any, _pool: Any, host: Any, device: Any, _io: str) -> None:
        for layer in range(self.layer_num):
            self.k_buffer[layer][host] = self.device_k_buffers[layer][device]
            self.v_buffer[layer][host] = self.device_v_buffers[layer][device]

    def load(
        self: Any, _pool: Any, host: Any, device: Any, layer: int, _io: str, *, is_draft: bool
    ) -> None:
        self.device_k_buffers[layer][device] = self.k_buffer[layer][host]
        self.device_v_buffers[layer][device] = self.v_buffer[layer][host]

    common._cuda_host_register = lambda *_: None
    Host.backup_from_device_all_layer = backup
    Host.load_to_device_per_layer = load
