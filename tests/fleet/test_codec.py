"""Events survive the wire, keep the shape others read, and damaged ones are refused by field."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import SerialisationError
from semblend.fleet.events.codec import (
    MAX_EVENT_BYTES,
    decode,
    decode_heartbeat,
    encode,
    encode_heartbeat,
)
from semblend.fleet.events.event_values import (
    DonorEvicted,
    DonorRelocated,
    DonorsPurged,
    GenerationReset,
    Heartbeat,
    Location,
)
from semblend.fleet.events.seal import sealed
from semblend.fleet.sealed_blocks import seal_blocks
from tests.fleet.support import SECRET, event, prompt, registered

SHARED = Location(kind="shared", tier="store", backend="folder", locator="abc")


@pytest.mark.parametrize(
    "data",
    [
        DonorEvicted(donor_id="d", generation=3),
        DonorsPurged(generation=3),
        DonorsPurged(generation=3, namespace_id="ab"),
        GenerationReset(generation=9, namespace={"model": "m"}),
        DonorRelocated(donor_id="d", generation=3, new_location=SHARED),
        DonorRelocated(
            donor_id="d",
            generation=3,
            new_location=Location(worker_id="w", backend="folder", locator="abc"),
        ),
    ],
    ids=lambda data: type(data).__name__,
)
def test_small_events_come_back_equal(data):
    assert decode(encode(event(7, data, "worker", 2))) == event(7, data, "worker", 2)


def test_a_registration_comes_back_with_every_fingerprint():
    data = registered("d", prompt(1, 3000))
    back = decode(encode(event(1, data))).data
    assert np.array_equal(back.hashes, data.hashes)
    assert back.segments == data.segments
    assert (back.donor_id, back.namespace_id, back.token_count, back.sampling) == (
        "d",
        data.namespace_id,
        3000,
        4,
    )


def test_an_embedding_travels_as_little_endian_floats():
    data = replace(registered("d", prompt(1, 3000)), embedding=(0.5, -2.0))
    wire = json.loads(encode(event(1, data)))
    assert wire["data"]["segments"][0]["provider_metadata"] == list(
        np.array([0.5, -2.0], dtype="<f4").tobytes()
    )
    assert decode(encode(event(1, data))).data.embedding == (0.5, -2.0)


def test_sealed_blocks_travel_and_events_without_them_are_read_as_ever():
    data = registered("d", prompt(1, 3000))
    plain = json.loads(encode(event(1, data)))
    assert "blocks" not in plain["data"]
    assert decode(encode(event(1, data))).data.blocks is None
    blocks = seal_blocks([1, -2, 2**64 - 1], SECRET)
    wire = encode(event(1, replace(data, blocks=blocks)))
    assert decode(wire).data.blocks == blocks
    # The version stays: who does not know the field reads everything else of the event.
    told = json.loads(wire)
    assert told["data"].pop("blocks")["scheme"] == blocks.scheme
    assert {**told, "xxh3": ""} == {**plain, "xxh3": ""}


def test_the_wire_has_the_shape_other_routers_read():
    wire = json.loads(encode(event(5, registered("d", prompt(1, 1200)), "w", 1)))
    assert {"schema_version", "event_id", "worker_id", "dp_rank", "data", "xxh3"} == set(wire)
    data = wire["data"]
    assert data["kind"] == "donor_registered"
    assert data["location"]["kind"] == "worker"
    assert data["segments"][1]["token_range"] == [512, 1024]
    assert isinstance(data["segments"][0]["digest"], int)


def test_no_event_holds_token_ids():
    """Tokens of a prompt are nowhere in what leaves: neither as numbers nor as their bytes."""
    tokens = np.arange(40_000, 41_200, dtype=np.int32)
    wire = encode(event(1, registered("d", tokens)))
    numbers = {int(n) for n in __import__("re").findall(rb"\d+", wire)}
    assert not numbers & set(range(40_000, 41_200))
    assert tokens.tobytes()[:16] not in wire


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (lambda w: w.update(schema_version=2), "schema_version"),
        (lambda w: w.update(event_id=-1), "event_id"),
        (lambda w: w.update(event_id=True), "event_id"),
        (lambda w: w.update(worker_id=""), "worker_id"),
        (lambda w: w.update(data=[]), "data"),
        (lambda w: w["data"].update(kind="other"), "kind"),
        (lambda w: w["data"].update(kind=["x"]), "kind"),
        (lambda w: w["data"]["fingerprints"].update(scheme="x"), "scheme"),
        (lambda w: w["data"]["fingerprints"].update(hashes="*"), "base64"),
        (lambda w: w["data"]["fingerprints"].update(hashes="AAAA"), "64-bit"),
        (lambda w: w["data"]["segments"][0].update(token_range=[5, 5]), "token_range"),
        (lambda w: w["data"]["segments"][0].update(digest=2**64), "digest"),
        (lambda w: w["data"]["segments"][0].update(provider_metadata=[1, 2]), "provider_metadata"),
        (lambda w: w["data"]["location"].update(kind="moon"), "location.kind"),
        (lambda w: w["data"]["namespace"]["extra"].clear(), "semblend_namespace"),
        (lambda w: w["data"].update(blocks=[1, 2]), "blocks"),
        (lambda w: w["data"].update(blocks={"scheme": 1}), "scheme"),
        (lambda w: w["data"].update(blocks={"scheme": "x", "nonce": "*"}), "blocks.nonce"),
    ],
)
def test_a_damaged_event_is_refused_by_field(damage, field):
    wire = json.loads(encode(event(1, registered("d", prompt(1, 1200)))))
    damage(wire)
    with pytest.raises(SerialisationError, match=field):
        decode(sealed(json.dumps(wire).encode()))


def test_a_message_without_a_checksum_that_matches_is_refused():
    payload = encode(event(1, registered("d", prompt(1, 1200))))
    wire = json.loads(payload)
    with pytest.raises(SerialisationError, match="checksum"):
        decode(json.dumps(wire).encode())
    for at in (0, len(payload) // 2, len(payload) - 5):
        flipped = bytearray(payload)
        flipped[at] ^= 4
        with pytest.raises(SerialisationError):
            decode(bytes(flipped))


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused(payload):
    with pytest.raises(SerialisationError):
        decode(payload)


def test_oversized_and_deep_events_are_refused():
    with pytest.raises(SerialisationError, match="at most"):
        decode(b" " * (MAX_EVENT_BYTES + 1))
    with pytest.raises(SerialisationError):
        decode(b"[" * 100_000)


def test_heartbeats_come_back_equal():
    beat = Heartbeat(worker_id="w", dp_rank=1, generation=5, last_event_id=9)
    assert decode_heartbeat(encode_heartbeat(beat)) == beat


def test_an_unknown_purge_scope_is_read_as_everything():
    wire = json.loads(encode(event(1, DonorsPurged(generation=1))))
    wire["data"]["scope"] = {"adapter": "x"}
    assert decode(sealed(json.dumps(wire).encode())).data.namespace_id is None
