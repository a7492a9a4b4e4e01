"""`patch_radix_cache()`: the published name, doing its work the supported way.

It once replaced a method of SGLang's radix cache. Current SGLang uses another cache
class in another process, so that patch changed nothing and said nothing. Now the
backend is registered with SGLang's own registry and chosen by its own setting; where
that is not possible, the call says why.
"""

from __future__ import annotations

from typing import Any

from semblend.core.errors import MissingExtraError, UnsupportedModelError
from semblend.integration.running_mode import RunningMode
from semblend.integration.sglang.log_lines import logger
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.plugin import BACKEND, problems, register, unseen
from semblend.integration.sglang.versions import VERSIONS

_HOOKED = "sglang.srt.server_args.ServerArgs.resolve_once"


def patch_radix_cache() -> str:
    """Make SGLang engines started from now on use SemBlend; returns the backend's name.

    Call it before `sglang.Engine(...)` or `sglang.launch_server`. The server's processes
    load the backend through SemBlend's entry point, so it must be installed as a package,
    not merely importable. Where this SGLang cannot be given a backend, engines start without:
    one line says why, and the name is empty.

    Raises
    ------
    MissingExtraError
        If SGLang is not installed.
    UnsupportedModelError
        With SEMBLEND_STRICT_START, if this SGLang cannot be given the backend, with every reason.
    """
    if VERSIONS.installed() is None:
        raise MissingExtraError(package="sglang", extra="sglang", purpose="patch_radix_cache()")
    register()
    reasons = [*problems(), *([unfound] if (unfound := unseen()) else [])]
    if not reasons and not _choose_by_default():
        reasons = [f"{_HOOKED} cannot be hooked"]
    if not reasons:
        return BACKEND
    options = BackendOptions.from_env()
    if options.settings().strict_start:
        raise UnsupportedModelError(f"patch_radix_cache(): {'; '.join(reasons)}")
    RunningMode.nothing(options.mode, "; ".join(reasons)).say(logger)
    return ""


def _choose_by_default() -> bool:
    """Engines whose settings do not name a backend get this one; returns whether they will.

    Settings travel to the scheduler's process inside ServerArgs, which every way of
    starting SGLang resolves once: with SGLang's own hook the choice is made just before,
    and what the user states is kept.
    """
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        if _HOOKED not in HookRegistry._patched:
            HookRegistry.register(_HOOKED, _choose, HookType.BEFORE)
            HookRegistry.apply_hooks()
        return _HOOKED in HookRegistry._patched
    except (ImportError, AttributeError):
        return False


def _choose(arguments: Any) -> None:
    resolved = getattr(arguments, "_resolution_finished", False)
    if not resolved and not arguments.radix_cache_backend:
        arguments.radix_cache_backend = BACKEND
