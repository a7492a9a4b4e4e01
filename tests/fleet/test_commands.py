"""`semblend fleet` and `semblend route`, as a user runs them."""

import json
import logging
import os
import socket
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from semblend.cli.main import app
from semblend.fleet.directory.directory import DEFAULT_POSTINGS_PER_DONOR, Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.publish.nats_link import LogOptions
from tests.fleet.engines import MODEL
from tests.fleet.support import slow, until
from tests.fleet.test_jetstream import Member

SECRET = "the secret of this fleet"


@pytest.fixture(autouse=True)
def logs_as_before():
    """Commands send logs to their own stderr, which a runner closes behind them."""
    loggers = [logging.getLogger(name) for name in ("semblend", "uvicorn.error", "uvicorn.access")]
    before = [(log, log.handlers[:], log.propagate, log.level, log.disabled) for log in loggers]
    yield
    for log, handlers, propagate, level, disabled in before:
        log.handlers, log.propagate, log.disabled = handlers, propagate, disabled
        log.setLevel(level)


def test_fleet_lists_the_workers_and_what_they_hold(nats_server):
    member = Member(LogOptions(url=nats_server.url), "one")
    try:
        member.keep(3)
        assert member.announcer.publisher.wait()
        env = {"SEMBLEND_NATS_URL": nats_server.url}
        found = CliRunner().invoke(app, ["fleet", "--json", "--seconds", "1"], env=env)
        assert found.exit_code == 0, found.output
        (rank,) = json.loads(found.stdout)["ranks"]
        assert (rank["worker"], rank["donors"], rank["standing"]) == ("one", 3, "alive")
        assert "one" in CliRunner().invoke(app, ["fleet", "--seconds", "0"], env=env).stdout
    finally:
        member.announcer.publisher.abandon()


@pytest.mark.parametrize(
    ("arguments", "env", "word"),
    [
        (["fleet"], {}, "SEMBLEND_NATS_URL"),
        (["route", "--worker", "a=http://x"], {}, "SEMBLEND_NATS_URL"),
        (["route", "--worker", "nonsense"], {"SEMBLEND_NATS_URL": "nats://x"}, "id=http"),
        (["route", "--worker", "a=http://x"], {"SEMBLEND_NATS_URL": "nats://x"}, "SECRET"),
        (
            ["route", "--worker", "a=http://x", "--kv-events", "b=tcp://x:1"],
            {"SEMBLEND_NATS_URL": "nats://x"},
            "'b' is not one",
        ),
        (
            ["route", "--worker", "a=http://x", "--kv-events", "a=x:1"],
            {"SEMBLEND_NATS_URL": "nats://x"},
            "tcp://host:port",
        ),
        (
            ["route", "--worker", "a=http://x"],
            {"SEMBLEND_NATS_URL": "x", "SEMBLEND_NAMESPACE_SECRET": SECRET},
            "SEMBLEND_NATS_URL",
        ),
    ],
)
def test_commands_say_what_is_missing(arguments, env, word):
    model = [str(MODEL), "--port", "0"] if arguments[0] == "route" else []
    clean = {"SEMBLEND_NATS_URL": "", "SEMBLEND_NAMESPACE_SECRET": "", **env}
    refused = CliRunner().invoke(app, [arguments[0], *model, *arguments[1:]], env=clean)
    assert refused.exit_code == 2, refused.output
    assert word in refused.output.replace("\n", "")


@slow
def test_route_serves_and_saves_its_directory(nats_server, tmp_path):
    snapshot = tmp_path / "directory"
    arguments = ["route", str(MODEL), "--worker", "a=http://127.0.0.1:9", "--port"]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SEMBLEND_NATS_URL": nats_server.url,
        "SEMBLEND_NAMESPACE_SECRET": SECRET,
    }
    port = _free_port()
    gateway = subprocess.Popen(
        [
            *(sys.executable, "-m", "semblend.cli.main", *arguments, str(port)),
            *("--snapshot", str(snapshot), "--max-donor-mib", "4"),
        ],
        env=env,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(trust_env=False) as client:
            until(lambda: _answers(client, url), "the gateway", 200.0)
            reply = client.post(f"{url}/v1/completions", json={"prompt": [5], "model": "m"})
            assert reply.status_code == 503, "its only worker is not there"
            assert reply.json()["error"]["code"] == "no_worker"
            assert client.get(f"{url}/health/ready").status_code == 503
    finally:
        gateway.terminate()
        assert gateway.wait(timeout=60) == 0
    held = Directory(SketchIndex.within(4 << 20, postings_per_donor=DEFAULT_POSTINGS_PER_DONOR))
    assert held.load(snapshot) == 0


def _answers(client, url):
    try:
        return client.get(f"{url}/health/live").status_code == 200
    except httpx.HTTPError:
        return False


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
