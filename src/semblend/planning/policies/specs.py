"""Policies as text: ``name``, ``name(argument, ...)`` and ``one + other``, freely nested."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields

from semblend.core.errors import PolicySpecError
from semblend.core.settings import nearest
from semblend.planning.policies.base import RecomputePolicy
from semblend.planning.policies.both import Both

Known = Mapping[str, type[RecomputePolicy]]


def parse(spec: str, known: Known) -> RecomputePolicy:
    """Parse a policy's text. Nothing in it is executed."""
    try:
        body = ast.parse(spec.strip(), mode="eval").body
        return _policy(body, spec, known)
    except PolicySpecError:
        raise
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        # RecursionError and MemoryError both mean it is nested too deeply for the parser.
        shown = spec if len(spec) <= 200 else spec[:200] + "…"
        raise PolicySpecError(
            f"recompute policy {shown!r}: expected one of {', '.join(known)}"
        ) from None


def _policy(node: ast.expr, spec: str, known: Known) -> RecomputePolicy:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return Both(_policy(node.left, spec, known), _policy(node.right, spec, known))
    call = node.func if isinstance(node, ast.Call) else node
    if not isinstance(call, ast.Name):
        raise PolicySpecError(f"recompute policy {spec!r}: expected one of {', '.join(known)}")
    if call.id not in known:
        meant = nearest(call.id, known) if len(call.id) < 64 else ""
        names = "" if "known names" in meant else f" known names: {', '.join(known)}"
        problem = f"there is no {call.id!r}{meant}{names}"
        raise PolicySpecError(f"recompute policy {spec!r}: {problem}")
    cls = known[call.id]
    takes = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    try:
        if not isinstance(node, ast.Call):
            return cls()
        given = [_value(argument, spec, known) for argument in node.args]
        named = {word.arg or "**": _value(word.value, spec, known) for word in node.keywords}
        return cls(*given, **named)
    except PolicySpecError:
        raise  # an inner policy, which has already named itself
    except (TypeError, ValueError) as error:
        raise PolicySpecError(
            f"recompute policy {spec!r}: {call.id} takes ({', '.join(takes)}): {error}"
        ) from error


def _value(node: ast.expr, spec: str, known: Known) -> object:
    """An argument: a plain value, or a policy."""
    if isinstance(node, (ast.Name, ast.BinOp)) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known
    ):
        return _policy(node, spec, known)
    return ast.literal_eval(node)
