"""Certificates for models of tests: they hold today, whatever was measured."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from semblend.planning.certificates import MEASUREMENT_VERSION, Certificate, file_name


def certificate_of(fingerprint: str, *, policy: str, **changes: Any) -> Certificate:
    """A certificate of float32 weights, from now until tomorrow."""
    now = datetime.now(UTC)
    values: dict[str, Any] = {
        "model": "tiny",
        "fingerprint": fingerprint,
        "dtype": "float32",
        "policy": policy,
        "bound": {},
        "figures": {},
        "data": {},
        "versions": {"measurement": str(MEASUREMENT_VERSION)},
        "created": now.isoformat(),
        "expires": (now + timedelta(days=1)).isoformat(),
    }
    return Certificate(**{**values, **changes}).hashed()


def write(folder: Path, certificate: Certificate) -> Path:
    """Put it where it is looked for."""
    path = folder / file_name(certificate)
    path.write_text(certificate.to_json(), encoding="utf-8")
    return path
