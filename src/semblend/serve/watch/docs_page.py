"""`/docs`: the API's description as one page, generated from `/openapi.json`.

FastAPI's own page loads scripts from another host; this one has no scripts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from semblend.serve.watch.page import Page

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; }
h2 { margin: 2rem 0 .25rem; font-size: 1.1rem; overflow-wrap: anywhere; }
h2 code { font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
td, th { border-top: 1px solid #8884; padding: .25rem .5rem; text-align: left; }
td { vertical-align: top; }
p { margin: .25rem 0; }
"""


def docs_page(description: Mapping[str, Any]) -> Page:
    """Render an OpenAPI description."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    info = description["info"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info.get('summary', ''))}</p>",
        '<p>For programs: <a href="/openapi.json">openapi.json</a>.</p>',
        *_operations(description),
        "</body></html>",
    ]
    return Page(body="".join(parts).encode(), headers={"content-security-policy": policy})


def _operations(description: Mapping[str, Any]) -> Iterator[str]:
    schemas = description.get("components", {}).get("schemas", {})
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield f"<h2>{escape(method.upper())} <code>{escape(path)}</code></h2>"
            yield f"<p>{escape(operation.get('description', ''))}</p>"
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            name = str(schema.get("$ref", "")).rpartition("/")[2]
            yield from _fields(schemas.get(name, {}))


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    properties = schema.get("properties", {})
    if not properties:
        return
    required = set(schema.get("required", ()))
    yield '<div class="wide"><table><tr><th>Field</th><th>Type</th><th>What it is</th></tr>'
    for name, value in properties.items():
        needed = " (required)" if name in required else ""
        yield (
            f"<tr><td><code>{escape(name)}</code>{needed}</td><td>{escape(_kind(value))}</td>"
            f"<td>{escape(value.get('description', ''))}</td></tr>"
        )
    yield "</table></div>"


def _kind(schema: Mapping[str, Any]) -> str:
    """A type in words: names for references, alternatives for unions."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        branches = [_kind(branch) for branch in schema["anyOf"]]
        return " or ".join(dict.fromkeys(branch for branch in branches if branch != "null"))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    return str(schema.get("type", "anything"))
