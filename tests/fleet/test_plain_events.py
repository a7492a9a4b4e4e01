"""An address and a subject alone: whoever listens to the subject on core NATS hears of donors."""

import asyncio
import json
import logging
import sys
import threading

import pytest

from semblend.core.errors import MissingExtraError
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
    assert (extra["tenant"], extra["tenant_key"], extra["template"]) == ("acme", "acme", "rag-v1")
    assert registered["namespace"]["model"] == "m"
    assert registered["token_count"] == 500
    assert not any(b"hush-hush" in message for message in listener.heard), "salts stay here"


SECRET = "the secret of this fleet"


def said_by(url, worker, namespace=NAMESPACE, *, logged=True):
    """One life of a worker that has the fleet's secret and keeps one donor."""
    settings = Settings(
        embedder=EmbedderKind.NONE, nats_url=url, namespace_secret=SECRET, worker_id=worker
    )
    with SemBlendPipeline(settings) as pipeline:
        announcer = join(pipeline, settings, namespace)
        pipeline.register_donor(f"of-{worker}", prompt(1, 500), namespace)
        assert announcer._beside.publisher.wait()
        if logged:
            assert announcer.publisher.wait()
        announcer.close()


def registrations(listener):
    events = [json.loads(each)["data"] for each in listener.heard]
    return [event for event in events if event["kind"] == "donor_registered"]


def by_donor(listener):
    """Each donor's `extra`; a donor may be said twice, when it is kept and when a life begins."""
    return {each["donor_id"]: each["namespace"]["extra"] for each in registrations(listener)}


def test_with_a_secret_listeners_hear_the_same_with_tenants_hashed(nats_server, listener):
    said_by(nats_server.url, "one")
    until(lambda: listener.kinds()[-1:] == ["donors_purged"], "the listener")
    registered = registrations(listener)[0]
    extra = registered["namespace"]["extra"]
    assert extra["template"] == "rag-v1"
    assert extra["tenant"] == extra["tenant_key"] != "acme"
    assert registered["namespace"]["model"] == "m"
    for private in (b"acme", b"hush-hush"):
        assert not any(private in message for message in listener.heard)


def test_a_gate_of_a_listener_can_go_by_tenant_and_template(nats_server, listener):
    """One tenant has one name all over the fleet, and another tenant another."""
    said_by(nats_server.url, "one")
    said_by(nats_server.url, "two")
    said_by(nats_server.url, "three", NAMESPACE.with_parts(tenant="other"))
    said_by(nats_server.url, "four", NAMESPACE.with_parts(template="chat"))
    until(lambda: "of-four" in by_donor(listener), "the listener")
    one, two, three, four = (
        (extra["tenant_key"], extra["template"]) for extra in by_donor(listener).values()
    )
    assert one == two
    assert three[0] != one[0]
    assert four == (one[0], "chat")


def stream(url, change=None):
    """The fleet's stream, after `change`: what it listens to, and messages held by subject."""

    async def ask():
        import nats

        connection = await nats.connect(url)
        jetstream = connection.jetstream()
        if change is not None:
            await change(jetstream)
        info = await jetstream.stream_info("semantic-kv-events", subjects_filter=">")
        await connection.close()
        return info.config.subjects, info.state.subjects or {}

    return asyncio.run(ask())


def test_the_log_keeps_nothing_of_the_plain_subject(nats_server, listener):
    """Also in a stream that an earlier version has made."""
    from nats.js.api import StreamConfig

    async def as_it_was(jetstream):
        subjects = ["semantic-kv-events", "semantic-kv-events.>"]
        await jetstream.add_stream(StreamConfig(name="semantic-kv-events", subjects=subjects))

    stream(nats_server.url, as_it_was)
    said_by(nats_server.url, "one")
    until(lambda: listener.kinds()[-1:] == ["donors_purged"], "the listener")
    subjects, held = stream(nats_server.url)
    assert subjects == ["semantic-kv-events.>"]
    assert set(held) == {"semantic-kv-events.one.0"}


def test_without_jetstream_a_secret_silences_nobody(core_nats_server):
    listener = Listener(core_nats_server.url, "semantic-kv-events")
    try:
        said_by(core_nats_server.url, "one", logged=False)
        until(lambda: registrations(listener), "the listener")
    finally:
        listener.end.set()
        listener.join()


def test_without_the_client_of_nats_nothing_is_announced_and_nothing_stops(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "nats", None)
    settings = Settings(embedder=EmbedderKind.NONE, nats_url="nats://127.0.0.1:4222")
    with SemBlendPipeline(settings) as pipeline:
        assert join(pipeline, settings, NAMESPACE) is None
        assert "announces no donors" in caplog.text
        strict = settings.model_copy(update={"strict_start": True})
        with pytest.raises(MissingExtraError, match="nats-py"):
            join(pipeline, strict, NAMESPACE)


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
