"""Whatever a user gets wrong ends in a sentence, never in a traceback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from semblend.cli import serve as serve_command
from semblend.cli.main import app
from semblend.core.settings import Settings
from semblend.engine.options import EngineOptions
from semblend.serve.options import ServeOptions

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "examples" / "prompts"
WRONG = ("", "nonsense", "-1", "9" * 30, "a\x00b", "[/]", "1e400", "/no/such/place", "{", "'")
NOWHERE = "/no/such/model"
BASE = {
    # Enough to be asked for, and an end that comes at once where a value is accepted.
    "demo": ("--model", NOWHERE),
    "serve": (NOWHERE,),
    "route": (NOWHERE, "--worker", "a=http://127.0.0.1:1"),
    "fleet": ("--seconds", "0"),
    "explain": (str(PROMPTS / "second.txt"), str(PROMPTS / "first.txt")),
    "report": ("/no/such/audit.jsonl",),
    "settings": (),
    "certify": ("--model", NOWHERE),
    "redteam": ("--model", NOWHERE),
    "leaderboard": ("--model", NOWHERE, "--output", "/no/such/folder"),
    "bench lookup": ("--donors", "10", "--repeats", "1", "--vectors", "10"),
    "bench prefill": ("--model", NOWHERE),
    "doctor vllm": (),
    "doctor sglang": (),
    "doctor trtllm": (),
    "certificates list": (),
    "certificates show": ("no-such-certificate",),
    "certificates verify": (),
    "certificates add": ("/no/such/file",),
    "certificates key": ("/no/such/folder/key",),
    "certificates sign": ("/no/such/file", "--key", "/no/such/key"),
}


def commands():
    def walk(group, words):
        for name, command in sorted(group.commands.items()):
            if hasattr(command, "commands"):
                yield from walk(command, (*words, name))
            else:
                yield " ".join((*words, name)), command

    return dict(walk(typer.main.get_command(app), ()))


def run(command: str, *arguments: str, **options):
    result = CliRunner().invoke(app, [*command.split(), *arguments], **options)
    broken = result.exception
    assert broken is None or isinstance(broken, SystemExit), (arguments, repr(broken))
    assert "Traceback" not in result.output
    return result


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SEMBLEND_NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)


def test_every_command_is_tried():
    assert set(commands()) == set(BASE)


# A large number is not wrong for `bench lookup`; it only takes long.
TRIED = sorted(set(BASE) - {"bench lookup"})


@pytest.mark.parametrize("command", TRIED)
def test_a_wrong_value_of_any_option_is_answered_in_a_sentence(command):
    for number, parameter in enumerate(commands()[command].params):
        option = max(getattr(parameter, "opts", [""]), key=len)
        if not option.startswith("--") or getattr(parameter, "is_flag", False):
            continue
        # Four of the ten each, in turn: all of them over a command's options, in half the time.
        for value in (WRONG * 2)[number % len(WRONG) :][:8:2]:
            run(command, *BASE[command], option, value)


@pytest.mark.parametrize("command", TRIED)
@pytest.mark.parametrize("value", WRONG)
def test_a_wrong_argument_is_answered_in_a_sentence(command, value):
    run(command, value)
    run(command, "--no-such-option")


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_a_wrong_variable_is_answered_in_a_sentence(name, monkeypatch):
    for value in WRONG:
        if "\x00" in value:
            continue
        monkeypatch.setenv(f"SEMBLEND_{name.upper()}", value)
        result = run("settings")
        assert result.exit_code in (0, 2)


def test_a_device_that_is_not_there_is_named():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    model = str(ROOT / "models" / "semblend-reference-27m")
    for device in ("cuda", "cuda:7", "quantum", "meta"):
        result = run("serve", model, "--device", device, "--port", "0")
        assert result.exit_code == 2
        assert f"device {device!r}" in result.output


@pytest.mark.parametrize(
    ("spec", "meant"),
    [("edit_saef", "edit_safe"), ("span_haed(8)", "span_head"), ("none + seems(4)", "seams")],
)
def test_a_misspelt_policy_is_an_error_that_names_the_nearest(spec, meant, monkeypatch):
    for result in (
        run("explain", *BASE["explain"], "--policy", spec),
        run("certify", "--policy", spec, "--model", str(ROOT / "models/semblend-reference-27m")),
    ):
        assert result.exit_code == 2
        assert f"did you mean {meant}?" in result.output
    monkeypatch.setenv("SEMBLEND_RECOMPUTE_POLICY", spec)
    result = run("settings")
    assert result.exit_code == 2
    assert f"did you mean {meant}?" in result.output


def test_names_are_not_cut_in_a_narrow_terminal(monkeypatch):
    for columns in ("80", "60", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = run("settings").stdout
        for name in Settings.shown():
            assert f"SEMBLEND_{name.upper()}" in shown, columns
        assert "…" not in shown


def test_fleet_says_within_two_seconds_that_nobody_answers(monkeypatch):
    """Each address may take as long to be reached as to speak; the machine may be busy beside."""
    pytest.importorskip("nats")
    connect, patience = socket.create_connection, []

    def noted(place, timeout):
        patience.append(timeout)
        return connect(place, timeout=timeout)

    monkeypatch.setattr(socket, "create_connection", noted)
    for url in ("nats://127.0.0.1:1", "nats://127.0.0.1:1,nats://127.0.0.1:2", "nats://192.0.2.1"):
        monkeypatch.setenv("SEMBLEND_NATS_URL", url)
        patience.clear()
        result = run("fleet")
        assert len(patience) == len(url.split(","))
        assert 2 * sum(patience) <= 2.0
        assert result.exit_code == 2
        assert "nothing answers there" in result.output


@pytest.fixture
def served(monkeypatch):
    """What `semblend serve` would start."""
    found = {}

    def note(model, settings, options, engine_options, log_level, console):
        found.update(model=model, settings=settings, options=options, engine=engine_options)

    monkeypatch.setattr(serve_command, "_run", note)
    return found


YAML = """
model: /some/model
port: 8123
max-concurrent: 3
public_metrics: true
allow_host: [a.example, b.example]
device: cpu
settings: {shadow_rate: 0.5, recompute_policy: "span_head(8)"}
"""
TOML = """
model = "/some/model"
port = 8123
max-concurrent = 3
public_metrics = true
allow_host = ["a.example", "b.example"]
device = "cpu"
[settings]
shadow_rate = 0.5
recompute_policy = "span_head(8)"
"""


@pytest.mark.parametrize(("name", "text"), [("c.yaml", YAML), ("c.toml", TOML)])
def test_serve_takes_its_flags_and_settings_from_a_file_and_flags_win(name, text, served, tmp_path):
    (tmp_path / name).write_text(text)
    assert run("serve", "--config", name).exit_code == 0
    assert served["model"] == "/some/model"
    options: ServeOptions = served["options"]
    assert (options.port, options.max_concurrent, options.public_metrics) == (8123, 3, True)
    assert options.allowed_hosts == ("a.example", "b.example")
    engine: EngineOptions = served["engine"]
    assert (engine.device, engine.max_running) == ("cpu", 3)
    assert served["settings"].shadow_rate == 0.5
    assert served["settings"].recompute_policy == "span_head(8)"
    assert run("serve", "/other", "--config", name, "--port", "9").exit_code == 0
    assert (served["model"], served["options"].port) == ("/other", 9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 1", "prot: no such key; did you mean port?"),
        ("port: high", "--port"),
        ("port: [1]", "port: expected one value"),
        ("port: true", "port:"),
        ("public_metrics: 3", "public_metrics: expected true or false"),
        ("allow_host: x", "allow_host: expected a list"),
        ("settings: {shadow_rat: 1}", "settings.shadow_rat: no such setting; did you mean"),
        ("settings: 3", "settings: expected a table"),
        ("settings: {shadow_rate: 7}", "shadow_rate"),
        ("- 1", "expected a table of keys"),
        ("a: [", "c.yaml"),
        ("log_level: LOUD", "--log-level"),
    ],
)
def test_a_wrong_key_of_the_file_is_named(text, said, served, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    result = run("serve", "m", "--config", "c.yaml")
    assert result.exit_code == 2
    assert said in result.output
    assert not served
