"""The server: OpenAI's API, metrics and a page to watch, over an engine that fits `protocols`."""

from semblend.serve.app import create_app
from semblend.serve.options import ServeOptions

__all__ = ["ServeOptions", "create_app"]
