"""SemBlend's planner. No other file of SemBench imports SemBlend.

It measures what the planner finds. Plans have no recompute runs and need no quality
certificate, because those decide what an engine may do with a plan, not what could be
reused. A plan that SemBlend itself refuses (too little gain, below the requested reuse
ratio) proposes nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sembench.blocks import ProposedSpan
from sembench.errors import PlannerError
from sembench.planners.base import PlannerDonor, PlannerRequest, PlannerSettings

if TYPE_CHECKING:
    from semblend.core.namespace import Namespace
    from semblend.core.plan import Plan
    from semblend.core.settings import Settings
    from semblend.pipeline import SemBlendPipeline

_FLAGS = {
    "semblend_embedder": "embedder",
    "semblend_min_similarity": "min_similarity",
    "semblend_min_reuse_ratio": "min_reuse_ratio",
}
_OWN = frozenset({*_FLAGS, "semblend_path", "disable_multi_donor"})


class SemBlendPlanner:
    """Wraps a separate SemBlendPipeline with one namespace."""

    def __init__(self, settings: PlannerSettings) -> None:
        options = settings.options
        pipeline, namespace, semblend_settings = _import_semblend(options.get("semblend_path"))
        values = {
            name: options[flag] for flag, name in _FLAGS.items() if options.get(flag) is not None
        }
        values |= {name: value for name, value in options.items() if name not in _OWN}
        values = {"allow_uncertified": True, "recompute_policy": "none", **values}
        try:
            self._settings = semblend_settings.from_mapping(values)
        except ValueError as error:
            raise PlannerError(f"--planner semblend: {error}") from error
        self._pipeline = pipeline(self._settings)
        self._namespace = namespace.of(
            model="sembench", tokenizer=settings.tokenizer, block_size=settings.block_size
        )
        self._block_size = settings.block_size
        self._one_donor = bool(options.get("disable_multi_donor"))
        self._by_meaning = self._settings.fuzzy_chunks

    def register(self, donor: PlannerDonor) -> None:
        """Offer the donor, with its text if meaning can change a plan."""
        text = donor.text if self._by_meaning else None
        if not self._pipeline.register_donor(
            donor.donor_id, donor.tokens, self._namespace, text=text
        ):
            raise PlannerError(f"SemBlend did not accept donor {donor.donor_id}")

    def forget(self, donor_id: str) -> None:
        self._pipeline.evict(donor_id)

    def describe(self) -> Mapping[str, Any]:
        """Name, version and relevant settings."""
        shown = self._settings.model_dump(mode="json", exclude={"namespace_secret"})
        return {
            "name": "semblend",
            "version": version("semblend"),
            "path": str(getattr(sys.modules["semblend"], "__file__", "")),
            "multi_donor": not self._one_donor,
            "settings": shown,
        }

    def plan(self, request: PlannerRequest) -> Sequence[ProposedSpan]:
        """The spans of an offered plan; empty if SemBlend refuses to plan."""
        plan = self._make_plan(request)
        if plan is None or plan.reason is not None:
            return []
        spans = list(plan.spans)
        if self._one_donor and spans:
            covered: Counter[str] = Counter()
            for span in spans:
                covered[span.donor_id] += span.length
            best = covered.most_common(1)[0][0]
            spans = [span for span in spans if span.donor_id == best]
        return [
            ProposedSpan(
                donor_id=span.donor_id,
                donor_start=span.donor_start,
                target_start=span.target_start,
                length=span.length,
            )
            for span in spans
        ]

    def _make_plan(self, request: PlannerRequest) -> Plan | None:
        if not self._by_meaning:
            return self._pipeline.plan(request.tokens, self._namespace, block_size=self._block_size)
        self._pipeline.wait_until_learned()
        match = self._pipeline.find_donor(
            request.tokens, self._namespace, text=request.text, block_size=self._block_size
        )
        return None if match is None else match.plan


def _import_semblend(
    path: str | None,
) -> tuple[type[SemBlendPipeline], type[Namespace], type[Settings]]:
    """Import the classes this adapter uses, from the checkout at `path` if given."""
    if path and not (Path(path) / "semblend").is_dir():
        raise PlannerError(f"--semblend-path: expected a folder with semblend in it, got {path!r}")
    if path and path not in sys.path:
        if "semblend" in sys.modules:
            raise PlannerError("--semblend-path: another SemBlend is already imported")
        sys.path.insert(0, path)
    try:
        from semblend.core.namespace import Namespace
        from semblend.core.settings import Settings
        from semblend.pipeline import SemBlendPipeline
    except ImportError as error:
        raise PlannerError(f"--planner semblend: SemBlend cannot be imported ({error})") from error
    return SemBlendPipeline, Namespace, Settings
