"""Under an operator's key, only what that key signed holds; in any doubt nothing does."""

import importlib.util
import os
import sys

import pytest
from typer.testing import CliRunner

from semblend.cli.main import app
from semblend.planning.certificates import look_up
from semblend.planning.signatures import signature_objection, signature_of
from tests.certificates import certificate_of, write

signing = pytest.mark.skipif(
    importlib.util.find_spec("cryptography") is None, reason="needs the signing extra"
)
GOOD = certificate_of("ab" * 16, policy="span_head(8)")
ANY_KEY = "0" * 64


def standing(folder, key):
    return look_up(GOOD.fingerprint, dtype="float32", folders=[folder], key=key)


def run(*arguments):
    return CliRunner().invoke(app, ["certificates", *map(str, arguments)])


@pytest.fixture
def signed(tmp_path):
    path = write(tmp_path, GOOD)
    assert run("key", tmp_path / "operator").exit_code == 0
    result = run("sign", path, "--key", tmp_path / "operator")
    assert result.exit_code == 0, result.output
    return path


def test_without_a_key_signatures_are_not_asked_for(tmp_path):
    write(tmp_path, GOOD)
    assert standing(tmp_path, "").policy == GOOD.policy


def test_under_a_key_an_unsigned_certificate_does_not_hold(tmp_path):
    write(tmp_path, GOOD)
    found = standing(tmp_path, ANY_KEY)
    assert found.policy is None
    assert found.reason is not None


def test_without_the_package_nothing_holds_under_a_key(tmp_path, monkeypatch):
    path = write(tmp_path, GOOD)
    signature_of(path).write_text("00" * 64)
    for name in list(sys.modules):
        if name.startswith("cryptography"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert "signing" in (signature_objection(path, ANY_KEY) or "")
    assert standing(tmp_path, ANY_KEY).policy is None


@signing
def test_what_the_key_signed_holds_by_digits_and_by_file(signed, tmp_path):
    public = tmp_path / "operator.pub"
    assert standing(tmp_path, str(public)).policy == GOOD.policy
    assert standing(tmp_path, public.read_text().strip()).policy == GOOD.policy
    assert os.stat(tmp_path / "operator").st_mode & 0o077 == 0, "the private key is its owner's"


@signing
def test_another_key_another_certificate_or_a_damaged_signature_does_not_hold(signed, tmp_path):
    public = (tmp_path / "operator.pub").read_text().strip()
    run("key", tmp_path / "other")
    assert standing(tmp_path, str(tmp_path / "other.pub")).policy is None
    other = certificate_of(GOOD.fingerprint, policy="none")
    signed.write_text(other.to_json())
    assert standing(tmp_path, public).policy is None, "a signature is of one file's bytes"
    signed.write_text(GOOD.to_json())
    assert standing(tmp_path, public).policy == GOOD.policy
    for damaged in ("", "zz", "00" * 64):
        signature_of(signed).write_text(damaged)
        assert standing(tmp_path, public).policy is None
    assert standing(tmp_path, "/no/such/key").policy is None


@signing
def test_keys_are_not_overwritten_and_what_does_not_hold_is_not_signed(signed, tmp_path):
    before = (tmp_path / "operator").read_text()
    assert run("key", tmp_path / "operator").exit_code == 1
    assert (tmp_path / "operator").read_text() == before
    signed.write_text(GOOD.to_json().replace("span_head(8)", "none"))
    result = run("sign", signed, "--key", tmp_path / "operator")
    assert result.exit_code == 1
    assert "altered" in result.output


@signing
def test_add_brings_the_signature_along(signed, tmp_path, monkeypatch):
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_KEY", str(tmp_path / "operator.pub"))
    goal = tmp_path / "goal"
    assert run("add", signed, "--to", goal).exit_code == 0
    assert standing(goal, str(tmp_path / "operator.pub")).policy == GOOD.policy
