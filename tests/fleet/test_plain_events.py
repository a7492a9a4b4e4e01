"""An address and a subject alone: whoever listens to the subject on core NATS hears of donors."""

import asyncio
import json
import logging
import threading

import pytest

from semblend.core.namespace import Namespace
from semblend.core.settings import EmbedderKind, Settings
from semblend.fleet.membership import join
from semblend.pipeline import SemBlendPipeline
from tests.fleet.support import prompt, until

NAMESPACE = Namespace.of(model="m", tenant="acme", template="rag-v1", cache_salt="hush-hush")


class Listener(threading.Thread):
    """An ordinary NATS client that knows the subject and nothing else."""

    def __init__(self, url, subject):
        super().__init__(daemon=True)
        self.heard, self.ready, self.end = [], threading.Event(), threading.Event()
        self._url, self._subject = url, subject
        self.start()
        assert self.ready.wait(30)

    def run(self):
        asyncio.run(self._listen())

    async def _listen(self):
        import nats

        connection = await nats.connect(self._url)
        subscription = await connection.subscribe(self._subject)
        await connection.flush()
        self.ready.set()
        while not self.end.is_set():
            try:
                message = await subscription.next_msg(timeout=0.1)
            except nats.errors.TimeoutError:
                continue
            self.heard.append(message.data)
        await connection.close()

    def kinds(self):
        return [json.loads(each)["data"]["kind"] for each in self.heard]


@pytest.fixture
def listener(nats_server):
    one = Listener(nats_server.url, "semantic-kv-events")
    yield one
    one.end.set()
    one.join()


def test_address_and_subject_alone_publish_the_documents_events(nats_server, listener, caplog):
    settings = Settings(embedder=EmbedderKind.NONE, nats_url=nats_server.url, worker_id="w")
    with SemBlendPipeline(settings) as pipeline, caplog.at_level(logging.WARNING):
        announcer = join(pipeline, settings, NAMESPACE)
        assert announcer.publisher.wait()
        pipeline.register_donor("d1", prompt(1, 500), NAMESPACE)
        pipeline.evict("d1")
        announcer.close()
    (said,) = [line for line in caplog.messages if "SEMBLEND_NAMESPACE_SECRET is not set" in line]
    assert "semantic-kv-events" in said
    expected = ["provider_generation_reset", "donor_registered", "donor_evicted", "donors_purged"]
    until(lambda: listener.kinds() == expected, "the listener")
    registered = json.loads(listener.heard[1])["data"]
    extra = registered["namespace"]["extra"]
    assert (extra["tenant_key"], extra["template"]) == ("acme", "rag-v1")
    assert registered["namespace"]["model"] == "m"
    assert registered["token_count"] == 500
    assert not any(b"hush-hush" in message for message in listener.heard), "salts stay here"


def test_with_a_secret_nothing_is_said_in_plain(nats_server, listener):
    settings = Settings(
        embedder=EmbedderKind.NONE,
        nats_url=nats_server.url,
        namespace_secret="the secret of this fleet",
    )
    with SemBlendPipeline(settings) as pipeline:
        announcer = join(pipeline, settings, NAMESPACE)
        pipeline.register_donor("d1", prompt(1, 500), NAMESPACE)
        assert announcer.publisher.wait()
        announcer.close()
    assert listener.heard == []


def test_a_server_without_a_secret_serves_and_shares_nothing(nats_server, listener, tmp_path):
    from semblend.engine.api import GenerationRequest, SamplingParams
    from semblend.engine.engine import EmbeddedEngine
    from semblend.integration.embedded.fleet import FleetMember

    settings = Settings(
        embedder=EmbedderKind.NONE,
        allow_uncertified=True,
        nats_url=nats_server.url,
        transport=f"folder:{tmp_path / 'store'}",
    )
    engine = EmbeddedEngine.load("models/semblend-reference-27m", settings=settings)
    member = FleetMember(engine, settings)
    try:
        assert (member.exporter, member.importer) == (None, None)
        request = GenerationRequest(
            request_id="1",
            tokens=prompt(1, 300) % engine.model.vocab_size,
            namespace=engine.namespace(tenant="acme", template="rag-v1"),
            sampling=SamplingParams(max_tokens=1),
        )
        member.submit(request).result()
        until(lambda: "donor_registered" in listener.kinds(), "the listener")
    finally:
        member.close()
        engine.close()
    registered = json.loads(listener.heard[listener.kinds().index("donor_registered")])["data"]
    extra = registered["namespace"]["extra"]
    assert (extra["tenant_key"], extra["template"]) == ("acme", "rag-v1")
    assert not (tmp_path / "store").exists()
