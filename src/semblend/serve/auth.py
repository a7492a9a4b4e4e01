"""Maps API keys or a trusted header to a tenant.

Keys are kept only as SHA-256 digests. Every digest is compared in constant time, whether
or not an earlier one matched. The key file is JSON::

    {"keys": {"sk-…": "acme",
              "sha256:<64 hex digits>": {"tenant": "ops", "admin": true, "principal": "anna"}}}

A key may be listed in plain text or as its digest, so the file need not contain a secret. Each key
is a principal of its own unless several name the same one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from semblend.core.errors import SettingsError
from semblend.core.json_text import parse_json
from semblend.serve.api_errors import ApiError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")
"""Allowed names for tenants and templates."""
_NAME_RULE = "expected 1 to 128 letters, digits or ._:@/-, starting with a letter or digit"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MIN_KEY_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request and what they may see."""

    tenant: str | None
    """None: the engine's default tenant."""
    principal: str | None = None
    """Who it is within the tenant. None: everybody who reaches the tenant is one."""
    sees_all: bool = False
    """Whether it may see other tenants' metadata (an admin key, or no keys configured)."""
    nameless: bool = False
    """Tenants come from a header, and this caller sent none. It may watch, but may not send
    prompts: they would share a namespace with those of every other caller without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    digest: bytes
    caller: Caller


class KeyRing:
    """API keys by digest; never holds a key in plain text."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        if not keys:
            raise SettingsError("key file: expected at least one key under 'keys'")
        self._keys = tuple(_parse_key(key, owner) for key, owner in keys.items())
        if len({key.digest for key in self._keys}) != len(self._keys):
            raise SettingsError("key file: the same key is listed twice")

    @classmethod
    def from_file(cls, path: Path) -> KeyRing:
        """Read a key file.

        Raises
        ------
        SettingsError
            If the format is wrong (see the module docstring). The message quotes no key.
        """
        try:
            data = parse_json(path.read_bytes())
        except OSError as error:
            raise SettingsError(f"key file {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise SettingsError(f"key file {path} is not valid JSON") from error
        keys = data.get("keys") if isinstance(data, dict) else None
        if not isinstance(keys, dict):
            raise SettingsError(f'key file {path}: expected {{"keys": {{"<key>": "<tenant>"}}}}')
        return cls(keys)

    def find(self, key: str) -> Caller | None:
        """The caller a key belongs to. Takes equally long for wrong and right keys."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found: Caller | None = None
        for candidate in self._keys:
            if hmac.compare_digest(candidate.digest, digest):
                found = candidate.caller
        return found


def _parse_key(key: str, owner: Any) -> _Key:
    match = _DIGEST.fullmatch(key)
    if match is None and len(key) < _MIN_KEY_CHARACTERS:
        raise SettingsError(
            f"key file: a key of {len(key)} characters can be guessed; "
            f"use at least {_MIN_KEY_CHARACTERS}"
        )
    digest = bytes.fromhex(match[1]) if match else hashlib.sha256(key.encode()).digest()
    tenant = owner.get("tenant") if isinstance(owner, dict) else owner
    admin = owner.get("admin", False) if isinstance(owner, dict) else False
    principal = owner.get("principal", digest.hex()) if isinstance(owner, dict) else digest.hex()
    if not isinstance(tenant, str) or not NAME.fullmatch(tenant):
        raise SettingsError(f"key file: tenant: {_NAME_RULE}")
    if not isinstance(admin, bool):
        raise SettingsError("key file: admin: expected true or false")
    if not isinstance(principal, str) or not NAME.fullmatch(principal):
        raise SettingsError(f"key file: principal: {_NAME_RULE}")
    caller = Caller(tenant=tenant, sees_all=admin, principal=principal)
    return _Key(digest=digest, caller=caller)


class TenancyOptions(Protocol):
    """Where tenants come from."""

    @property
    def key_file(self) -> Path | None: ...

    @property
    def trust_tenant_header(self) -> bool:
        """Whether to trust x-tenant-id."""
        ...


class Authenticator:
    """Turns request headers into a Caller; refuses rather than guesses."""

    def __init__(self, options: TenancyOptions) -> None:
        self._keys = KeyRing.from_file(options.key_file) if options.key_file else None
        self._trusts_header = options.trust_tenant_header

    @property
    def needs_key(self) -> bool:
        """Whether callers must present an API key."""
        return self._keys is not None

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """Identify the caller from (lower-case) headers.

        Raises
        ------
        ApiError
            401 for a missing or unknown key, 400 or 403 for a tenant header that cannot be
            honored. Ignoring it would put callers who ask for isolation into one namespace.
        """
        tenant = headers.get("x-tenant-id")
        caller = self._holder(headers)
        if tenant is None or tenant == caller.tenant:
            return caller
        if not self._trusts_header:
            raise ApiError(
                400,
                "x-tenant-id: this server does not take tenants from headers; remove the header, "
                "or start the server with --trust-tenant-header",
                param="x-tenant-id",
                code="tenant_header_not_trusted",
            )
        if not caller.sees_all:
            raise ApiError(
                403,
                "x-tenant-id: this API key already has a tenant; remove the header, or use an "
                "admin key",
                param="x-tenant-id",
                code="tenant_not_allowed",
            )
        return Caller(tenant=checked_name("x-tenant-id", tenant), sees_all=True)

    def _holder(self, headers: Mapping[str, str]) -> Caller:
        """The caller according to the key alone, if keys are required."""
        if self._keys is None:
            return Caller(tenant=None, sees_all=True, nameless=self._trusts_header)
        caller = self._keys.find(_bearer(headers))
        if caller is None:
            raise ApiError(401, "unknown API key", code="invalid_api_key")
        return caller


def require_admin(caller: Caller | None) -> None:
    """Refuse a caller who may not see totals over all tenants; None means a public route.

    Raises
    ------
    ApiError
        403.
    """
    if caller is not None and not caller.sees_all:
        raise ApiError(403, "this needs an admin API key", code="admin_only")


def require_tenant(caller: Caller) -> None:
    """Refuse a prompt without a tenant if tenants come from a header.

    Raises
    ------
    ApiError
        400.
    """
    if caller.nameless:
        raise ApiError(
            400,
            "x-tenant-id: required with every prompt, because this server was started with "
            "--trust-tenant-header",
            param="x-tenant-id",
            code="tenant_header_missing",
        )


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise ApiError(
            401, "missing API key: send 'Authorization: Bearer <key>'", code="missing_api_key"
        )
    return key.strip()


def checked_name(param: str, value: str) -> str:
    """Check that a tenant or template name is safe to log and hash.

    Raises
    ------
    ApiError
        400 naming `param` and the rule.
    """
    if not NAME.fullmatch(value):
        raise ApiError(400, f"{param}: {_NAME_RULE}", param=param, code="invalid_value")
    return value


class Pseudonyms:
    """Keyed hashes that replace tenant and donor names where those must not appear."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode() if secret else secrets.token_bytes(32)

    def tenant(self, tenant: str | None) -> str:
        """Twelve hex digits that identify a tenant without revealing it."""
        return self._hash("tenant", tenant or "", "")[:12]

    def donor(self, tenant: str | None, donor_id: str) -> str:
        """Sixteen hex digits that identify a donor to its own tenant only."""
        return self._hash("donor", tenant or "", donor_id)

    def _hash(self, kind: str, tenant: str, name: str) -> str:
        message = "\0".join((kind, tenant, name)).encode("utf-8", "surrogatepass")
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()[:16]
