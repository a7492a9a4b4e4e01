"""A certificate that is not exactly what was measured, here and now, allows nothing."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from semblend.core.errors import SerialisationError
from semblend.core.outcomes import DeclineReason
from semblend.planning.certificates import (
    MEASUREMENT_VERSION,
    SHIPPED,
    Certificate,
    certificate_folders,
    depth_table,
    examined,
    file_name,
    find_depth_table,
    look_up,
)

NOW = datetime(2026, 11, 15, tzinfo=UTC)
GOOD = Certificate(
    model="some/model",
    fingerprint="f" * 32,
    dtype="float32",
    policy="edit_dependents(1, 8) + span_head(8)",
    bound={"answers": 0.01},
    figures={"chosen": [{"kl": 1e-3}]},
    data={"fingerprint": "d"},
    versions={"measurement": str(MEASUREMENT_VERSION)},
    created=NOW.isoformat(),
    expires=(NOW + timedelta(days=30)).isoformat(),
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / file_name(GOOD)).write_text(GOOD.to_json(), encoding="utf-8")
    return tmp_path


def standing(folder, *, fingerprint=GOOD.fingerprint, now=NOW, dtype="float32", **asked):
    return look_up(fingerprint, dtype=dtype, folders=[folder], now=now, **asked)


def test_a_certificate_reads_back_and_names_its_policy(folder):
    found = standing(folder)
    assert found.policy == GOOD.policy
    assert found.certificate == GOOD
    assert found.refusal is None


def test_every_altered_field_is_noticed():
    data = json.loads(GOOD.to_json())
    for key, value in data.items():
        if key == "digest":
            continue
        changed = {**data, key: [value] if key != "format" else value + 1}
        with pytest.raises(SerialisationError):
            Certificate.from_json(json.dumps(changed))
    figures = {**data, "figures": {"chosen": [{"kl": 1e-4}]}}
    with pytest.raises(SerialisationError, match="altered"):
        Certificate.from_json(json.dumps(figures))


def test_an_altered_file_allows_nothing_and_is_said(folder, caplog):
    path = folder / file_name(GOOD)
    path.write_text(path.read_text("utf-8").replace("span_head(8)", "none"), encoding="utf-8")
    found = standing(folder)
    assert found.policy is None
    assert found.reason is DeclineReason.NO_CERTIFICATE
    assert "altered" in found.detail
    assert "altered" in caplog.text


@pytest.mark.parametrize(
    ("change", "asked", "reason", "said"),
    [
        ({}, {"now": NOW + timedelta(days=31)}, DeclineReason.CERTIFICATE_EXPIRED, "expired"),
        ({}, {"dtype": "bfloat16"}, DeclineReason.NO_CERTIFICATE, "measured in float32"),
        ({}, {"quantization": "fp8:1"}, DeclineReason.NO_CERTIFICATE, "with fp8:1"),
        (
            {"data": {"quantization": "fp8:1"}},
            {"quantization": "none"},
            DeclineReason.NO_CERTIFICATE,
            "measured with quantization fp8:1",
        ),
        ({}, {"kv_format": "fp8_e4m3"}, DeclineReason.NO_CERTIFICATE, "cache has fp8_e4m3"),
        (
            {"data": {"kv_format": "fp8_e4m3"}},
            {"kv_format": "none"},
            DeclineReason.NO_CERTIFICATE,
            "measured with K/V format fp8_e4m3",
        ),
        (
            {"data": {"speculation": "ngram"}},
            {"speculation": "none"},
            DeclineReason.NO_CERTIFICATE,
            "drafts with none",
        ),
        (
            {"data": {"speculation": "eagle:1a"}},
            {"speculation": "eagle:2b"},
            DeclineReason.NO_CERTIFICATE,
            "measured with speculation eagle:1a",
        ),
        ({}, {"fingerprint": "0" * 32}, DeclineReason.NO_CERTIFICATE, "no quality certificate"),
        (
            {"versions": {"measurement": "0"}},
            {},
            DeclineReason.NO_CERTIFICATE,
            "measurement version 0",
        ),
        (
            {"versions": {"measurement": "1 "}},
            {},
            DeclineReason.NO_CERTIFICATE,
            "measurement version 1 ",
        ),
        ({"versions": {"semblend": "0.3.9"}}, {}, DeclineReason.NO_CERTIFICATE, "unknown"),
        ({"versions": {"semblend": "0.40.1"}}, {}, DeclineReason.NO_CERTIFICATE, "unknown"),
        ({"versions": {}}, {}, DeclineReason.NO_CERTIFICATE, "unknown"),
    ],
)
def test_another_time_model_format_or_version_allows_nothing(tmp_path, change, asked, reason, said):
    (tmp_path / "c.json").write_text(replace(GOOD, **change).to_json(), encoding="utf-8")
    found = standing(tmp_path, **asked)
    assert (found.policy, found.reason) == (None, reason)
    assert said in found.detail


def test_weights_quantised_at_start_have_a_certificate_and_a_file_of_their_own(tmp_path):
    quantised = replace(GOOD, data={"quantization": "fp8_per_tensor:1a"}, policy="none")
    for certificate in (GOOD, quantised):
        (tmp_path / file_name(certificate)).write_text(certificate.to_json(), encoding="utf-8")
    assert len(list(tmp_path.iterdir())) == 2
    assert standing(tmp_path, quantization="none").policy == GOOD.policy
    assert standing(tmp_path, quantization="fp8_per_tensor:1a").policy == "none"
    assert standing(tmp_path, quantization="fp8_per_tensor:2b").policy is None


def test_a_k_v_format_and_a_drafter_have_certificates_and_files_of_their_own(tmp_path):
    served = ({}, {"kv_format": "fp8_e4m3"}, {"speculation": "eagle:weights:1a"})
    for data in served:
        certificate = replace(GOOD, data=data)
        (tmp_path / file_name(certificate)).write_text(certificate.to_json(), encoding="utf-8")
    assert len(list(tmp_path.iterdir())) == len(served)
    for data in served:
        found = standing(tmp_path, **{"kv_format": "none", "speculation": "none", **data})
        assert found.certificate is not None
        assert found.certificate.data == data


def test_what_was_measured_without_a_drafter_holds_with_any(tmp_path):
    """The model verifies every draft, so answers are its own."""
    (tmp_path / "c.json").write_text(GOOD.to_json(), encoding="utf-8")
    assert standing(tmp_path, speculation="ngram").policy == GOOD.policy
    assert standing(tmp_path, speculation="eagle:weights:1a").policy == GOOD.policy


@pytest.mark.parametrize("release", ["0.4.0", "0.5.0", "1.12.3", ""])
def test_a_release_alone_turns_no_reuse_off(tmp_path, release, monkeypatch):
    """Whatever release measured, and whatever release serves: the measurement decides."""
    versions = {"semblend": release, "measurement": str(MEASUREMENT_VERSION)}
    (tmp_path / "c.json").write_text(replace(GOOD, versions=versions).to_json(), encoding="utf-8")
    for serving in ("0.4.0", "0.5.0", "2.0.0"):
        monkeypatch.setattr("semblend.__version__", serving)
        assert standing(tmp_path).policy == GOOD.policy


def test_the_shipped_certificates_hold_as_they_were_measured():
    found = list(examined([SHIPPED], now=NOW + timedelta(days=90)))
    assert {item.certificate.dtype for item in found} == {"float32", "bfloat16"}
    for item in found:
        assert item.certificate.versions["measurement"] == str(MEASUREMENT_VERSION)
        assert item.objection is None, item.detail


def test_one_that_holds_is_found_beside_others_that_do_not(folder):
    expired = replace(GOOD, expires=(NOW - timedelta(days=1)).isoformat(), policy="none")
    (folder / "a.json").write_text(expired.to_json(), encoding="utf-8")
    (folder / "b.json").write_text("{}", encoding="utf-8")
    (folder / "c.json").write_bytes(b"\xff\xfe")
    assert standing(folder).policy == GOOD.policy


def test_an_unknown_policy_or_date_is_no_certificate():
    for change in ({"policy": "magic(3)"}, {"expires": "soon"}):
        with pytest.raises(SerialisationError):
            Certificate.from_json(replace(GOOD, **change).to_json())


def test_folders_are_searched_as_told_then_the_users_then_the_shipped(tmp_path):
    told, users, shipped = certificate_folders(str(tmp_path))
    assert told == tmp_path
    assert users.parts[-2:] == ("semblend", "certificates")
    assert shipped.name == "certificates"
    assert certificate_folders("none") == ()


def test_a_policy_that_shifts_depths_holds_with_its_very_table_and_no_other(tmp_path):
    table = b"means by depth"
    shifting = replace(
        GOOD,
        policy="depth_shift(none)",
        data={"depth_table": hashlib.sha256(table).hexdigest()},
    )
    path = tmp_path / file_name(shifting)
    path.write_text(shifting.to_json(), encoding="utf-8")
    missing = standing(tmp_path)
    depth_table(path).write_bytes(table + b".")
    altered = standing(tmp_path)
    for found in (missing, altered):
        assert found.policy is found.depth_table is None
        assert found.refusal[0] is DeclineReason.NO_CERTIFICATE
        assert depth_table(path).name in found.refusal[1]
    depth_table(path).write_bytes(table)
    assert standing(tmp_path).depth_table == depth_table(path)
    assert find_depth_table(GOOD.fingerprint, "float32", [tmp_path]) == depth_table(path)
    assert find_depth_table(GOOD.fingerprint, "bfloat16", [tmp_path]) is None
    assert find_depth_table("0" * 32, "float32", [tmp_path, tmp_path / "none"]) is None


def test_other_policies_need_no_table(folder):
    assert standing(folder).depth_table is None
