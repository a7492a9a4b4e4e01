"""SemBlend's counters inside an engine: whose growth confirms what, and when donors are there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sembench.live.engine_counters import Counts, EngineCounters
from sembench.live.reply import Reply


def page(engine: str, *, requests: int, donors: int, exact: int = 0, reused: int = 0) -> str:
    return (
        f'{engine}:semblend_tokens_total{{engine="0",source="exact"}} {exact}\n'
        f'{engine}:semblend_tokens_total{{engine="0",source="reused"}} {reused}\n'
        f'{engine}:semblend_requests_total{{engine="0",outcome="cold"}} {requests}\n'
        f'{engine}:semblend_donors_registered_total{{engine="0"}} {donors}\n'
    )


@contextmanager
def pages(*texts: str) -> Iterator[str]:
    """A server that answers with these pages in turn, and with the last one for ever."""
    left = list(texts)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def confirmed(url: str, reply: Reply) -> Reply:
    async def go() -> Reply:
        counters = EngineCounters([url])
        before = await counters.read()
        assert before is not None
        found = await counters.confirm(before, reply)
        await counters.aclose()
        return found

    return asyncio.run(go())


ANSWERED = Reply(request_id="r", text="yes", prompt_tokens=100)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_the_counters_grow_by_confirms_the_one_request_that_ended(engine: str) -> None:
    before = page(engine, requests=4, donors=1, exact=50, reused=10)
    # The counters of an answered request arrive a moment later.
    after = page(engine, requests=5, donors=1, exact=66, reused=74)
    with pages(before, before, before, after) as url:
        found = confirmed(url, ANSWERED)
    assert (found.exact_tokens, found.reused_tokens, found.cached_tokens) == (16, 64, 80)
    assert found.confirmed_by == "counters"


def test_growth_that_two_requests_share_confirms_neither() -> None:
    before = page("vllm", requests=4, donors=1)
    with pages(before, page("vllm", requests=6, donors=1, reused=64)) as url:
        assert confirmed(url, ANSWERED) == ANSWERED


def test_a_response_that_speaks_for_itself_is_left_as_it_is() -> None:
    before = page("vllm", requests=4, donors=1)
    said = Reply(request_id="r", text="yes", reused_tokens=5, confirmed_by="response")
    with pages(before, page("vllm", requests=5, donors=1, reused=64)) as url:
        assert confirmed(url, said) == said


def waited(url: str, before: Counts, donors: int, limit: float = 5.0) -> int:
    async def go() -> int:
        counters = EngineCounters([url])
        came = await counters.wait_for_donors(before, donors, limit)
        await counters.aclose()
        return came

    return asyncio.run(go())


def test_donors_are_waited_for_until_the_engine_has_registered_them() -> None:
    early = page("vllm", requests=2, donors=3)
    with pages(early, early, early, page("vllm", requests=2, donors=5)) as url:
        assert waited(url, Counts(donors=3), 2) == 2


def test_a_prompt_that_never_becomes_a_donor_is_not_waited_for_long() -> None:
    with pages(page("vllm", requests=2, donors=3)) as url:
        assert waited(url, Counts(donors=3), 2, limit=60.0) == 0


def test_requests_that_have_not_ended_are_waited_for_up_to_the_limit() -> None:
    with pages(page("vllm", requests=1, donors=3)) as url:
        assert waited(url, Counts(donors=3), 2, limit=0.8) == 0


def test_an_engine_without_semblend_has_no_counters() -> None:
    async def go(url: str) -> Counts | None:
        counters = EngineCounters([url])
        found = await counters.read()
        await counters.aclose()
        return found

    with pages("vllm:prompt_tokens_total 5\n") as url:
        assert asyncio.run(go(url)) is None
    with pages("<html>no page</html>") as url:
        assert asyncio.run(go(url)) is None
    assert asyncio.run(go("http://127.0.0.1:9/metrics")) is None
