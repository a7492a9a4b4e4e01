"""Quality certificates: a measured statement that a model with a policy stays within a bound.

A certificate is a JSON file with a hash of its contents, found by the fingerprint of the weights it
was measured on. Any problem with it (missing, altered, expired, or of another format, measurement
version or number format) has the same effect: plans are for discovery only.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from semblend.core.chain import MEASURED_TURNS
from semblend.core.errors import SemBlendError, SerialisationError
from semblend.core.faults import clock_jump_s
from semblend.core.json_text import parse_json
from semblend.core.namespace import NONE
from semblend.core.outcomes import DeclineReason
from semblend.planning.policies.base import policy_from_spec
from semblend.planning.policy_plugins import plugin_versions
from semblend.planning.signatures import signature_objection

logger = logging.getLogger("semblend.certificates")

CERTIFICATE_VERSION = 1
"""File format of certificates. Files of other formats cannot be read."""
MEASUREMENT_VERSION = 1
"""What a certificate's figures mean. Raise it when they no longer describe what is served: when a
workload, a metric or the bound changes its meaning, or a policy recomputes something else under the
same name (`tests/planning/test_measurement.py` detects that). A release alone does not raise it.
"""
_PLUGIN = "plug-in "
SHIPPED = Path(__file__).resolve().parents[1] / "certificates"
"""Bundled certificates. They are package data, so wheels have them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What was measured, on what, and what it permits."""

    model: str
    """A human-readable name."""
    fingerprint: str
    """Content hash of the weights and of whatever decides how they are used."""
    dtype: str
    """Number format of the measurement. It does not apply to other formats."""
    policy: str
    bound: Mapping[str, Any]
    figures: Mapping[str, Any]
    data: Mapping[str, Any]
    versions: Mapping[str, str]
    created: str
    expires: str
    format: int = CERTIFICATE_VERSION
    digest: str = field(default="", compare=False)

    @property
    def measurement(self) -> str:
        """The measurement version. Files of 0.4 omit it and are all version 1."""
        first = "1" if self.versions.get("semblend", "").startswith("0.4.") else "unknown"
        return self.versions.get("measurement", first)

    @property
    def quantization(self) -> str:
        """How the engine quantised weights as it loaded them; "none": they were used as stored."""
        return str(self.data.get("quantization", NONE))

    @property
    def kv_format(self) -> str:
        """The K/V cache's own number format; "none": it was the model's."""
        return str(self.data.get("kv_format", NONE))

    @property
    def speculation(self) -> str:
        """The drafter that was at work; "none": there was none."""
        return str(self.data.get("speculation", NONE))

    @property
    def architecture(self) -> str:
        """The model's class; empty in certificates that do not name it."""
        return str(self.data.get("architecture", ""))

    def hashed(self) -> Certificate:
        """A copy with the hash of its contents."""
        values = {**asdict(self), "digest": _digest(asdict(self))}
        return Certificate(**values)

    def to_json(self) -> str:
        """Readable JSON; :meth:`from_json` parses it."""
        return json.dumps(asdict(self.hashed()), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Parse a certificate and check its hash.

        Raises
        ------
        SerialisationError
            If it is not a certificate, has another format, or was altered.
        """
        try:
            data = parse_json(text)
            if data.get("format") != CERTIFICATE_VERSION:
                raise SerialisationError(
                    f"certificate format {data.get('format')!r}; "
                    f"this library reads {CERTIFICATE_VERSION}"
                )
            if data.get("digest") != _digest(data):
                raise SerialisationError("its contents do not match its hash, so it was altered")
            certificate = cls(**data)
            _check_kinds(certificate)
            if text != certificate.to_json():
                # Two readers must not be able to read one file differently.
                raise SerialisationError("its bytes are not what was written")
            policy_from_spec(certificate.policy)
        except SerialisationError:
            raise
        except (AttributeError, TypeError, ValueError, SemBlendError) as error:
            raise SerialisationError(f"not a certificate: {error}") from error
        return certificate

    def objection(
        self,
        *,
        dtype: str | None,
        quantization: str | None = None,
        kv_format: str | None = None,
        speculation: str | None = None,
        now: datetime,
    ) -> tuple[DeclineReason, str] | None:
        """Why it may not be used here and now, if anything is against it."""
        if datetime.fromisoformat(self.expires) <= now:
            return DeclineReason.CERTIFICATE_EXPIRED, f"the certificate expired on {self.expires}"
        if self.measurement != str(MEASUREMENT_VERSION):
            return (
                DeclineReason.NO_CERTIFICATE,
                f"the certificate has measurement version {self.measurement}, this release needs "
                f"{MEASUREMENT_VERSION}; run `semblend certify` again",
            )
        if plugin_entries(self.policy) != {
            name: text for name, text in self.versions.items() if name.startswith(_PLUGIN)
        }:
            return (
                DeclineReason.NO_CERTIFICATE,
                "the policy's plug-in is not the version that was measured",
            )
        if dtype is not None and dtype != self.dtype:
            return (
                DeclineReason.NO_CERTIFICATE,
                f"the certificate was measured in {self.dtype}, this model runs in {dtype}",
            )
        if quantization is not None and quantization != self.quantization:
            return (
                DeclineReason.NO_CERTIFICATE,
                f"the certificate was measured with quantization {self.quantization}, this engine "
                f"loads the weights with {quantization}",
            )
        if kv_format is not None and kv_format != self.kv_format:
            return (
                DeclineReason.NO_CERTIFICATE,
                f"the certificate was measured with K/V format {self.kv_format}, this engine's "
                f"cache has {kv_format}",
            )
        # The model verifies what a drafter proposes: what holds without one holds with any.
        if speculation is not None and self.speculation not in (NONE, speculation):
            return (
                DeclineReason.NO_CERTIFICATE,
                f"the certificate was measured with speculation {self.speculation}, this engine "
                f"drafts with {speculation}",
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What certificates say about one model: a valid one, or why there is none."""

    certificate: Certificate | None = None
    reason: DeclineReason | None = None
    detail: str = ""
    depth_table: Path | None = None
    """The depth-drift table the certificate was measured with, if its policy shifts depths."""

    @property
    def policy(self) -> str | None:
        """The certified policy, or None."""
        return None if self.certificate is None else self.certificate.policy

    @property
    def chain_turns(self) -> int:
        """Measured number of requests of one conversation over approximate K/V."""
        named = None if self.certificate is None else self.certificate.data.get("chain_turns")
        return named if isinstance(named, int) and named >= 1 else MEASURED_TURNS

    @property
    def until(self) -> datetime | None:
        """When the certificate expires, for processes that outlive it."""
        return (
            None if self.certificate is None else datetime.fromisoformat(self.certificate.expires)
        )

    @property
    def refusal(self) -> tuple[DeclineReason, str] | None:
        """Why none is valid, in the form gates use."""
        return None if self.reason is None else (self.reason, self.detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One file on the search path and any objection to it."""

    path: Path
    certificate: Certificate | None
    """None if the file is not a certificate."""
    objection: tuple[DeclineReason, str] | None

    @property
    def detail(self) -> str:
        """The objection in words; empty if there is none."""
        return "" if self.objection is None else self.objection[1]


def examined(
    folders: Iterable[Path] | None = None,
    *,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_format: str | None = None,
    speculation: str | None = None,
    now: datetime | None = None,
    key: str = "",
) -> Iterator[Examined]:
    """Every file on the search path, in search order. Never raises.

    With an operator's public `key`, those that it did not sign do not hold.
    """
    now = datetime.now(UTC) + timedelta(seconds=clock_jump_s()) if now is None else now
    for path in _files(certificate_folders() if folders is None else folders):
        try:
            certificate = Certificate.from_json(path.read_text(encoding="utf-8"))
        except (
            OSError,
            ValueError,
        ) as error:  # SerialisationError and UnicodeDecodeError are ValueErrors
            objection = DeclineReason.NO_CERTIFICATE, str(error)
            yield Examined(path=path, certificate=None, objection=objection)
            continue
        against = certificate.objection(
            dtype=dtype,
            quantization=quantization,
            kv_format=kv_format,
            speculation=speculation,
            now=now,
        )
        against = against or _table_objection(certificate, depth_table(path))
        if against is None and key and (unsigned := signature_objection(path, key)):
            against = DeclineReason.NO_CERTIFICATE, unsigned
        yield Examined(path=path, certificate=certificate, objection=against)


def look_up(
    fingerprint: str,
    *,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_format: str | None = None,
    speculation: str | None = None,
    folders: Iterable[Path] | None = None,
    now: datetime | None = None,
    key: str = "",
) -> Standing:
    """The first valid certificate for this model, or the first objection.

    Never raises. A file that cannot be read causes a warning and does not count.
    """
    refusal: tuple[DeclineReason, str] | None = None
    near = False
    """Whether the refusal is about a certificate of this number format."""
    for found in examined(
        folders,
        dtype=dtype,
        quantization=quantization,
        kv_format=kv_format,
        speculation=speculation,
        now=now,
        key=key,
    ):
        certificate, path = found.certificate, found.path
        if certificate is None:
            logger.warning("certificate %s not used: %s", path, found.detail)
            if fingerprint in path.name:
                refusal = refusal or found.objection
            continue
        if certificate.fingerprint != fingerprint:
            continue
        if found.objection is None:
            shifts = policy_from_spec(certificate.policy).shifts_depth
            return Standing(
                certificate=certificate, depth_table=depth_table(path) if shifts else None
            )
        if refusal is None or (certificate.dtype == dtype and not near):
            refusal, near = found.objection, certificate.dtype == dtype
    reason, detail = refusal or (
        DeclineReason.NO_CERTIFICATE,
        "this model has no quality certificate; make one with `semblend certify`",
    )
    return Standing(reason=reason, detail=detail)


def certificate_folders(explicit: str = "") -> tuple[Path, ...]:
    """The search path: the given folder, the user's, the bundled ones.

    "none" is an empty path.
    """
    if explicit == "none":
        return ()
    told = (Path(explicit).expanduser(),) if explicit else ()
    return (*told, users_folder(), SHIPPED)


def users_folder() -> Path:
    """Where `semblend certify` and `semblend certificates add` put certificates."""
    return Path.home() / ".cache" / "semblend" / "certificates"


def file_name(certificate: Certificate) -> str:
    """`<model>-<fingerprint>-<dtype>.json`, without characters a path could stumble over.

    What the engine added to the weights, its own K/V format and its drafter follow, if any: an
    engine may have a certificate with each.
    """
    added = (certificate.quantization, certificate.kv_format, certificate.speculation)
    suffix = "".join(f"-{text}" for text in added if text != NONE)
    stem = f"{certificate.fingerprint}-{certificate.dtype}{suffix}"
    named = f"{Path(certificate.model).name}-{stem}"
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in named) + ".json"


def depth_table(certificate_path: Path) -> Path:
    """Where a certificate's depth-drift table is: next to it."""
    return certificate_path.with_suffix(".depth.safetensors")


def find_depth_table(
    fingerprint: str, dtype: str, folders: Iterable[Path] | None = None
) -> Path | None:
    """A model's depth-drift table from anywhere on the search path, certified or not."""
    wanted = f"-{fingerprint}-{dtype}.depth.safetensors"
    for folder in certificate_folders() if folders is None else folders:
        if folder.is_dir():
            for path in sorted(folder.glob("*.depth.safetensors")):
                if path.name.endswith(wanted):
                    return path
    return None


def plugin_entries(policy: str) -> dict[str, str]:
    """Entries for a certificate's `versions` about the plug-ins a policy comes from."""
    found = plugin_versions(policy_from_spec(policy))
    return {_PLUGIN + name: version for name, version in found.items()}


def _files(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        if folder.is_file():
            yield folder
        elif folder.is_dir():
            yield from sorted(folder.glob("*.json"))


def _table_objection(certificate: Certificate, path: Path) -> tuple[DeclineReason, str] | None:
    """What is wrong with a certificate's depth-drift table, or None."""
    if not policy_from_spec(certificate.policy).shifts_depth:
        return None
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        found = "nothing"
    if found == certificate.data.get("depth_table"):
        return None
    return (
        DeclineReason.NO_CERTIFICATE,
        f"the certificate's depth-drift table, {path.name}, is missing or was altered",
    )


def _digest(data: Mapping[str, Any]) -> str:
    """SHA-256 of everything but the hash itself, as canonical JSON."""
    body = {key: value for key, value in data.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_kinds(certificate: Certificate) -> None:
    """Check field types: a hash shows that nothing was altered, not that it makes sense."""
    for name in ("model", "fingerprint", "dtype", "policy", "created", "expires"):
        if not isinstance(getattr(certificate, name), str):
            raise SerialisationError(f"certificate {name}: expected a string")
    for name in ("bound", "figures", "data", "versions"):
        if not isinstance(getattr(certificate, name), dict):
            raise SerialisationError(f"certificate {name}: expected a mapping")
    if not all(isinstance(text, str) for text in certificate.versions.values()):
        raise SerialisationError("certificate versions: expected strings")
    if datetime.fromisoformat(certificate.expires).tzinfo is None:
        raise SerialisationError("certificate expires: expected a time with a time zone")
