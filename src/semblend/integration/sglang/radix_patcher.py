"""`patch_radix_cache()`: the published name, doing its work the supported way.

It once replaced a method of SGLang's radix cache. Current SGLang uses another cache
class in another process, so that patch changed nothing and said nothing. Now the
backend is registered with SGLang's own registry and chosen by its own setting; where
that is not possible, the call raises and says why.
"""

from __future__ import annotations

from typing import Any

from semblend.core.errors import MissingExtraError, UnsupportedModelError
from semblend.integration.sglang.plugin import BACKEND, problems, register, unseen
from semblend.integration.sglang.versions import installed


def patch_radix_cache() -> str:
    """Make SGLang engines started from now on use SemBlend; returns the backend's name.

    Call it before `sglang.Engine(...)` or `sglang.launch_server`. The server's processes
    load the backend through SemBlend's entry point, so it must be installed as a package,
    not merely importable.

    Raises
    ------
    MissingExtraError
        If SGLang is not installed.
    UnsupportedModelError
        If this SGLang cannot serve the backend, with every reason.
    """
    verdict = installed()
    if verdict is None:
        raise MissingExtraError(package="sglang", extra="sglang", purpose="patch_radix_cache()")
    reasons = [] if verdict.supported else [f"SGLang {verdict.version} is not a known version"]
    register()
    reasons += problems()
    reasons += [unfound] if (unfound := unseen()) else []
    if reasons:
        raise UnsupportedModelError(f"patch_radix_cache(): {'; '.join(reasons)}")
    _choose_by_default()
    return BACKEND


def _choose_by_default() -> None:
    """Engines whose settings do not name a backend get this one.

    Settings travel to the scheduler's process inside ServerArgs, which every way of
    starting SGLang resolves once: with SGLang's own hook the choice is made just before,
    and what the user states is kept.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooked = "sglang.srt.server_args.ServerArgs.resolve_once"
    if hooked not in HookRegistry._patched:
        HookRegistry.register(hooked, _choose, HookType.BEFORE)
        HookRegistry.apply_hooks()
    if hooked not in HookRegistry._patched:
        raise UnsupportedModelError(f"patch_radix_cache(): {hooked} cannot be hooked")


def _choose(arguments: Any) -> None:
    resolved = getattr(arguments, "_resolution_finished", False)
    if not resolved and not arguments.radix_cache_backend:
        arguments.radix_cache_backend = BACKEND
