"""The audit stream: numbered, readable by SemBench, and never in a request's way."""

from __future__ import annotations

import json
import logging

from sembench.engine_events.vllm import VllmParser
from semblend.integration.audit import AuditStream

LOGGER = logging.getLogger("semblend.test_audit")


def everything(stream: AuditStream) -> None:
    """One request's life, and its donor's."""
    stream.event("request_first_seen", "r1", prompt_tokens=900)
    stream.donor_registered("r0", donor_id="r0.1", namespace="vllm:ab", tokens=800, blocks=7)
    stream.lookup_hit(
        "r1", donor_id="r0.1", kind="moved", reusable_tokens=700, reason="planned", similarity=0.9
    )
    stream.load_advertised(
        "semantic_span_load_advertised", "r1", donor_id="r0.1", tokens=700, boundary=896
    )
    stream.materialising("r1", donor_id="r0.1", tokens=700)
    stream.materialised("r1", donor_id="r0.1", tokens=700, layers=12)
    stream.lookup_miss("r2", reason="no_match")
    stream.declined("load_declined_no_blocks", "r3", reason="no_capacity")
    stream.failed("r4", reason="donor_gone", detail="it left", blocks=3)


def test_sembench_reads_the_same_from_the_log_and_from_the_stream(tmp_path, caplog):
    stream = AuditStream(engine="vllm", logger=LOGGER, path=tmp_path / "deep" / "audit.jsonl")
    with caplog.at_level(logging.DEBUG, logger=LOGGER.name):
        everything(stream)
    stream.close()
    records = (tmp_path / "deep" / "audit.jsonl").read_text().splitlines()
    for lines in (records, caplog.messages):
        parser = VllmParser()
        for line in lines:
            parser.feed(line)
        summary = parser.finish()
        assert summary.donor_registrations == 1
        assert summary.semantic_hits == 1
        assert summary.load_advertisements == 1
        assert summary.materialized_tokens == 700
        assert summary.rejection_reasons == {"no_match": 1, "no_capacity": 1}


def test_records_join_by_their_numbers(tmp_path):
    stream = AuditStream(engine="vllm", logger=LOGGER, path=tmp_path / "audit.jsonl")
    everything(stream)
    stream.flush()
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    stream.close()
    assert {record["schema_version"] for record in records} == {2}
    assert {record["connector_id"] for record in records} == {stream.connector_id}
    assert [record["event_seq"] for record in records] == list(range(1, len(records) + 1))
    by_request = {record["request_id"]: record["request_seq"] for record in records}
    assert len(set(by_request.values())) == len(by_request)


def test_a_stream_that_cannot_be_written_is_said_once_and_costs_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    stream = AuditStream(engine="vllm", logger=LOGGER, path=tmp_path / "file" / "audit.jsonl")
    everything(stream)
    stream.close()
    assert sum("cannot be written" in message for message in caplog.messages) == 1


def test_without_a_path_only_the_log_is_written(caplog):
    stream = AuditStream(engine="vllm", logger=LOGGER)
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        everything(stream)
    stream.close()
    assert "SemBlend materialized request_id=r1 donor_id=r0.1 tokens=700" in caplog.messages
