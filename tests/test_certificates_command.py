"""`semblend certificates` says what engines would do, and ends with 1 where reuse would be off."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semblend.cli.main import app
from semblend.planning.certificates import SHIPPED, depth_table, look_up
from tests.certificates import certificate_of, write

MODEL = Path(__file__).resolve().parents[1] / "models" / "semblend-reference-27m"
FINGERPRINT = "4eee1dfc0099949bf6ee4b6c80356591"


def run(*arguments):
    return CliRunner().invoke(app, ["certificates", *map(str, arguments)])


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SEMBLEND_CERTIFICATE_DIR", raising=False)
    return tmp_path / "home"


@pytest.fixture
def told(tmp_path, monkeypatch):
    folder = tmp_path / "told"
    folder.mkdir()
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", str(folder))
    return folder


def test_list_names_every_folder_and_whether_each_certificate_holds(told):
    write(told, certificate_of("a" * 32, policy="none"))
    late = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    write(told, certificate_of("b" * 32, policy="none", expires=late))
    (told / "broken.json").write_text("{}", encoding="utf-8")
    said = run("list").stdout
    assert f"{told}: 3" in said
    assert f"{SHIPPED}: 2" in said
    assert said.count("not used") == 2
    found = json.loads(run("list", "--json").stdout)["found"]
    assert [row["holds"] for row in found] == [False, True, False, True, True]


def test_show_says_policy_answers_leaks_price_and_when_it_ends():
    said = run("show", "float32").stdout
    for wanted in ("query_attention(0.05", "NVIDIA H200", "until 2027-", ".html", "composed"):
        assert wanted in said
    assert all(len(line) <= 100 for line in said.splitlines()[10:])
    assert json.loads(run("show", "float32", "--json").stdout)["figures"]["chosen"]
    assert run("show", "no-such-name").exit_code == 1


def test_verify_by_model_ends_with_0_only_where_reuse_would_be_on(told):
    assert run("verify", MODEL).exit_code == 0
    assert run("verify", MODEL, "--dtype", "float32").exit_code == 0
    refused = run("verify", MODEL, "--dtype", "float16")
    assert refused.exit_code == 1
    assert "float16" in refused.output
    soon = run("verify", MODEL, "--days", "400")
    assert soon.exit_code == 1
    assert "in 400 days" in soon.output
    # A broken one of another model beside it is no reason to stop a deployment.
    (told / "broken.json").write_text("{}", encoding="utf-8")
    assert run("verify", MODEL).exit_code == 0
    assert run("verify").exit_code == 1


def test_verify_names_a_model_without_a_certificate(tmp_path, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(MODEL, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    refused = run("verify", other)
    assert refused.exit_code == 1
    assert "no certificate for these weights" in refused.output
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", "none")
    assert run("verify", MODEL).exit_code == 1
    missing = run("verify", tmp_path / "nowhere")
    assert missing.exit_code == 1
    assert missing.exception is None or isinstance(missing.exception, SystemExit)


def test_add_brings_table_and_report_and_engines_find_it(tmp_path, home):
    received = tmp_path / "received"
    shutil.copytree(SHIPPED, received)
    (path,) = received.glob("*float32.json")
    renamed = path.rename(received / "mine.json")
    depth_table(path).rename(depth_table(renamed))
    added = run("add", renamed)
    assert added.exit_code == 0, added.output
    place = Path(added.stdout.strip())
    assert place.parent == home / ".cache" / "semblend" / "certificates"
    standing = look_up(FINGERPRINT, dtype="float32", folders=[place.parent])
    assert standing.certificate is not None
    assert standing.depth_table == depth_table(place)


def test_add_copies_nothing_that_would_not_hold(tmp_path, told):
    lonely = tmp_path / "lonely.json"
    (shipped,) = SHIPPED.glob("*float32.json")
    shutil.copyfile(shipped, lonely)
    refused = run("add", lonely)
    assert refused.exit_code == 1
    assert "depth-drift" in refused.output
    altered = tmp_path / "altered.json"
    altered.write_text(lonely.read_text().replace("0.15", "0.99"))
    assert "altered" in run("add", altered).output
    assert run("add", tmp_path / "absent.json").exit_code == 1
    assert list(told.iterdir()) == []
