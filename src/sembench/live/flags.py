"""Checks that an engine was started with flags under which its figures are comparable.

Whoever runs the benchmark provides the serve command. It is checked for options that
would quietly spoil a comparison, and is stored in the result either way.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sembench.errors import EngineFlagsError, UsageError
from sembench.json_text import parse_json
from sembench.provenance import MASK, SECRET_NAME

_SPECULATIVE = ("--speculative-config", "--speculative-algorithm", "--speculative-model")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """How the engine was started, as reported by the user."""

    serve_command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def violations(self) -> tuple[str, ...]:
        """What makes this engine's figures incomparable, one sentence each."""
        if not self.serve_command.strip():
            return ("the serve command is not known (--engine-serve-command)",)
        words = shlex.split(self.serve_command)
        found: list[str] = []
        if any(word.split("=")[0] in _SPECULATIVE for word in words):
            found.append("speculative decoding is on: answers depend on the draft model")
        if "sglang" in self.serve_command and "--enable-metrics" not in words:
            found.append("--enable-metrics is missing: reuse cannot be confirmed from metrics")
        if "--disable-log-stats" in words:
            found.append("--disable-log-stats is on: the engine publishes no cache counters")
        found.extend(_transfer_violations(words))
        return tuple(found)

    def require(self) -> None:
        """Raise EngineFlagsError (exit 3) if there is a violation."""
        if problems := self.violations():
            raise EngineFlagsError(
                "the engine's flags do not allow a fair run: " + "; ".join(problems)
            )

    def to_dict(self) -> dict[str, Any]:
        """The flags part of a result's `engine` section."""
        problems = self.violations() if self.serve_command else ()
        return {
            "flags": {
                "serve_command": self.serve_command,
                "env": {
                    name: MASK if SECRET_NAME.search(name) else value
                    for name, value in self.environment.items()
                },
            },
            "phase0_flag_violations": list(problems),
            "phase0_flags_ok": not problems if self.serve_command else None,
        }


def parse_environment(pairs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UsageError(f"--engine-env: expected NAME=VALUE, got {pair!r}")
        found[name] = value
    return found


def _transfer_violations(words: Sequence[str]) -> list[str]:
    """A vLLM connector must recompute failed loads; by default vLLM fails the request."""
    value = ""
    for position, word in enumerate(words):
        if word == "--kv-transfer-config" and position + 1 < len(words):
            value = words[position + 1]
        elif word.startswith("--kv-transfer-config="):
            value = word.partition("=")[2]
    if not value:
        return []
    try:
        config = parse_json(value)
    except ValueError:
        return ["--kv-transfer-config is not JSON"]
    policy = config.get("kv_load_failure_policy", "fail") if isinstance(config, dict) else None
    if policy != "recompute":
        return [f"kv_load_failure_policy is {policy!r}: failed loads would fail requests"]
    return []
