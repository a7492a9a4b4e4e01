"""An operator's signature beside a certificate: who looked at it and vouches for it.

A certificate's own hash shows damage, not an author. A signature (ed25519, over the file's bytes)
lies beside it as `*.sig`. Where a public key is set, certificates without that key's signature do
not hold, and neither do they where signatures cannot be checked.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from semblend.core.errors import MissingExtraError, SettingsError

_KEY_BYTES = 32


def signature_of(certificate_path: Path) -> Path:
    """Where a certificate's signature lies."""
    return certificate_path.with_suffix(".sig")


def make_key(path: Path) -> Path:
    """Write a new private key, readable by its owner alone; returns the public key's file.

    Raises
    ------
    MissingExtraError
        Without the package.
    SettingsError
        If there is a key already: certificates may be signed by it.
    """
    private = _ed25519().Ed25519PrivateKey.generate()
    public = path.with_name(path.name + ".pub")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise SettingsError(f"{path}: there is a file already; it is not overwritten") from error
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(private.private_bytes_raw().hex() + "\n")
    public.write_text(private.public_key().public_bytes_raw().hex() + "\n", encoding="ascii")
    return public


def sign_file(path: Path, key: Path) -> Path:
    """Sign a certificate's bytes with a private key; returns the signature's file.

    Raises
    ------
    MissingExtraError
        Without the package.
    SettingsError
        If the key is none.
    """
    ed25519 = _ed25519()
    private = ed25519.Ed25519PrivateKey.from_private_bytes(_key(key.read_text(encoding="ascii")))
    target = signature_of(path)
    target.write_text(private.sign(path.read_bytes()).hex() + "\n", encoding="ascii")
    return target


def signature_objection(path: Path, key: str) -> str | None:
    """Why this key does not vouch for a certificate, if it does not. Never raises."""
    try:
        text = Path(key).read_text(encoding="ascii") if not _is_hex(key) else key
        public = _ed25519().Ed25519PublicKey.from_public_bytes(_key(text))
        signature = bytes.fromhex(signature_of(path).read_text(encoding="ascii"))
        public.verify(signature, path.read_bytes())
    except FileNotFoundError as error:
        missing = str(error.filename)
        if missing == str(signature_of(path)):
            return "the certificate is not signed, and SEMBLEND_CERTIFICATE_KEY asks for it"
        return f"SEMBLEND_CERTIFICATE_KEY: {missing} is not there"
    except Exception as error:  # whatever is wrong with key, package or signature: nobody vouches
        return f"the certificate's signature is not that of the key ({_said(error)})"
    return None


def _ed25519() -> Any:
    try:
        return import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError as error:
        raise MissingExtraError(
            package="cryptography", extra="signing", purpose="signatures of certificates"
        ) from error


def _key(text: str) -> bytes:
    if not _is_hex(text.strip()):
        raise SettingsError(f"a key of {2 * _KEY_BYTES} hex digits expected")
    return bytes.fromhex(text.strip())


def _is_hex(text: str) -> bool:
    digits = set("0123456789abcdefABCDEF")
    return len(text) == 2 * _KEY_BYTES and set(text) <= digits


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
