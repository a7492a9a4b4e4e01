"""The audit stream: numbered, readable by SemBench, and never in a request's way."""

from __future__ import annotations

import json
import logging

from sembench.engine_events.vllm import VllmParser
from semblend.core.ledger import Settlement
from semblend.core.outcomes import Outcome
from semblend.integration.auditing.audit_file import RotatingLines
from semblend.integration.auditing.audit_stream import AuditStream

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


def info_lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]


def test_a_request_has_one_info_line_and_it_says_how_the_request_ended(caplog):
    stream = AuditStream(engine="vllm", logger=LOGGER)
    with caplog.at_level(logging.DEBUG, logger=LOGGER.name):
        everything(stream)
        # Found in discovery, and then a donor itself.
        stream.lookup_hit(
            "r5", donor_id="r0.1", kind="moved", reusable_tokens=9, reason="no_certificate"
        )
        stream.donor_registered("r5", donor_id="r5.1", namespace="vllm:ab", tokens=80, blocks=5)
    lines = info_lines(caplog)
    for request in ("r0", "r1", "r2", "r3", "r4", "r5"):
        assert sum(f"request_id={request} " in line for line in lines) <= 1, lines
    assert any("materialized request_id=r1 " in line for line in lines)
    assert any("lookup hit request_id=r5 " in line for line in lines)


def test_only_experimental_loads_are_called_experimental(caplog):
    stream = AuditStream(engine="vllm", logger=LOGGER)
    with caplog.at_level(logging.DEBUG, logger=LOGGER.name):
        for standing in ("certified", "exact"):
            stream.load_advertised(
                "semantic_span_load_advertised", "r", donor_id="d", tokens=7, standing=standing
            )
    assert "experimental" not in caplog.text
    parser = VllmParser()
    for line in caplog.messages:
        parser.feed(line)
    assert parser.finish().load_advertisements == 2


def test_audit_files_are_bounded_in_size_and_number_and_lose_no_recent_record(tmp_path):
    path = tmp_path / "audit.jsonl"
    stream = AuditStream(engine="vllm", logger=LOGGER, path=path, max_bytes=2_000, files=3)
    for number in range(60):
        stream.event("request_first_seen", f"r{number}", prompt_tokens=number)
        stream.flush()
    stream.close()
    files = sorted(tmp_path.iterdir(), key=lambda file: file.name)
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(file.stat().st_size <= 2_000 for file in files)
    kept = [
        json.loads(line)["prompt_tokens"]
        for file in reversed(files)
        for line in file.read_text().splitlines()
    ]
    assert kept == list(range(kept[0], 60)), "in order, the newest last"


def test_an_audit_file_that_was_there_counts_and_a_single_one_starts_anew(tmp_path):
    path = tmp_path / "a"
    path.write_text("old\n" * 10)
    lines = RotatingLines(path, max_bytes=50, files=2)
    lines.write("x" * 20)
    lines.close()
    assert path.read_text() == "x" * 20 + "\n"
    assert (tmp_path / "a.1").read_text() == "old\n" * 10
    single = RotatingLines(tmp_path / "b", max_bytes=10, files=1)
    for _ in range(5):
        single.write("y" * 8)
    single.close()
    assert [file.name for file in tmp_path.glob("b*")] == ["b"]
    unbounded = RotatingLines(tmp_path / "c", max_bytes=0, files=1)
    for _ in range(50):
        unbounded.write("z" * 8)
    unbounded.close()
    assert (tmp_path / "c").stat().st_size == 450


def test_a_settled_request_is_one_record_with_what_would_be_saved(tmp_path):
    stream = AuditStream(engine="vllm", logger=LOGGER, path=tmp_path / "audit.jsonl")
    settlement = Settlement(
        request_id="r",
        outcome=Outcome.DISCOVERY_ONLY,
        prompt_tokens=100,
        reusable_tokens=60,
        tokens_by_donor=(("d", 60),),
    )
    stream.settled(settlement, tenant="acme")
    stream.settled(None)
    stream.close()
    (record,) = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert record["event"] == "request_settled"
    assert record["reusable_tokens"] == 60
    assert record["tokens_by_donor"] == {"d": 60}
    assert record["tenant"] == "acme"
