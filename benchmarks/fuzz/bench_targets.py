"""What SemBench reads: audit lines, engine logs, manifests, results and streams."""

from __future__ import annotations

import asyncio
import contextlib
import json

import httpx

from sembench.clock import MachineClock
from sembench.engine_events import PARSERS
from sembench.engine_events.connector_audit import ConnectorAuditParser
from sembench.engine_events.trtllm import TrtllmParser
from sembench.errors import SemBenchError
from sembench.live.stream import StreamError, arrivals, http_error
from sembench.manifests.spec import BuildSpec
from sembench.model import ManifestItem
from sembench.results import Result


def audit(data: bytes) -> None:
    """Audit streams of the connectors and of TensorRT-LLM."""
    for parser in (ConnectorAuditParser(), TrtllmParser()):
        for line in _lines(data):
            parser.feed(line)
        parser.finish()


def audit_seeds() -> list[bytes]:
    """One line of every kind that is counted."""
    common = {"schema_version": 2, "connector_id": "c", "request_id": "r", "request_seq": 1}
    told = (
        {"event": "donor_registered", "tokens": 5},
        {"event": "semantic_lookup_hit", "similarity": 0.5, "reusable_tokens": 5},
        {"event": "runtime_materialized", "tokens": 5, "pieces": [1], "layers_materialized": 2},
        {"event": "semantic_lookup_miss", "miss_rejection_reason": "no_match"},
        {"event": "load_error_blocks_reported", "blocks": 3},
        {"event": "lookup", "found": True, "num_new_matched_tokens": 5},
        {"event": "materialized", "materialized": 3},
    )
    lines = [json.dumps({**common, **each, "event_seq": n}) for n, each in enumerate(told)]
    return ["\n".join(lines).encode(), lines[2].encode()]


def engine_log(data: bytes) -> None:
    """Engines' own logs."""
    for make in PARSERS.values():
        parser = make()
        for line in _lines(data):
            parser.feed(line)
        parser.finish()


def engine_log_seeds() -> list[bytes]:
    """Lines as the engines write them."""
    return [
        b"INFO SemBlend materialized request_id=r donor_id=d tokens=12\n"
        b"INFO SemBlend donor registered request_id=r namespace=n tokens=5 blocks=1",
        b"LMCache INFO: Reqid: r, Total tokens 10, LMCache hit tokens: 5, need to load: 3",
    ]


def item(data: bytes) -> None:
    """A manifest's line, and a build spec."""
    text = _text(data)
    with contextlib.suppress(SemBenchError):
        ManifestItem.from_line(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        with contextlib.suppress(SemBenchError):
            BuildSpec.from_dict(value, where="spec")


def item_seeds() -> list[bytes]:
    """An item and a spec."""
    one = {
        "item_id": "i",
        "dataset": "d",
        "source_id": "s",
        "transform": "t",
        "donor_prompts": [{"donor_id": "a", "prompt": "text"}],
        "recipient_prompt": "text",
        "answers": ["x"],
        "negative_control": False,
        "metadata": {},
    }
    spec = {"name": "n", "profile": "synthetic", "transforms": ["exact_repeat"]}
    return [json.dumps(one).encode(), json.dumps(spec).encode()]


def result(data: bytes) -> None:
    """A result file's contents."""
    try:
        value = json.loads(_text(data))
    except (ValueError, RecursionError):
        return
    with contextlib.suppress(SemBenchError):
        Result.from_dict(value)


def result_seeds() -> list[bytes]:
    """A small result."""
    row = {"item_id": "i", "dataset": "d", "transform": "t"}
    run = {"run_id": "r", "engine": "e"}
    return [json.dumps({"result_version": "2", "run": run, "requests": [row]}).encode()]


def stream(data: bytes) -> None:
    """Server-sent events, and the body of a refusal."""
    http_error(500, data)

    async def read() -> None:
        async for _ in arrivals(httpx.Response(200, content=data), MachineClock()):
            pass

    with contextlib.suppress(StreamError):
        asyncio.run(read())


def stream_seeds() -> list[bytes]:
    """A stream that ends properly."""
    return [b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n', b'{"error": {"message": 1}}']


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _lines(data: bytes) -> list[str]:
    return _text(data).splitlines()
