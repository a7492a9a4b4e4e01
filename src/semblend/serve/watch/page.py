"""The page at `/`: one file, with a content security policy computed from it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib import resources

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page's bytes and its headers."""

    body: bytes
    headers: dict[str, str]


def load_page() -> Page:
    """Read the packaged page and allow exactly its own script and style."""
    html = resources.files("semblend.serve").joinpath("static/index.html").read_text("utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for match in _INLINE.finditer(html):
        digest = base64.b64encode(hashlib.sha256(match[2].encode()).digest()).decode()
        hashes[match[1]].append(f"'sha256-{digest}'")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(hashes['script'])}",
            f"style-src {' '.join(hashes['style'])}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    return Page(body=html.encode(), headers={"content-security-policy": policy})
