"""What is deployed says what the code means: settings, flags, metrics and paths exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from semblend.core.settings import Settings, variable

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "semblend"
DASHBOARD = DEPLOY / "grafana" / "semblend-fleet.json"
SECRET = "secret.namespaceSecret=0123456789abcdef"


def test_every_setting_named_in_a_deployment_is_one():
    known = {variable(name) for name in Settings.model_fields}
    for path in [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.tpl")]:
        named = set(re.findall(r"\bSEMBLEND_[A-Z_]+", path.read_text(encoding="utf-8")))
        if path.name != "values-vllm.yaml":
            assert named <= known, path


def test_every_metric_of_the_dashboard_is_exported():
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src/semblend/serve").rglob("*.py")
    )
    exported = set(re.findall(r'"(semblend:)?([a-z_]+)"', source))
    names = {name for _, name in exported}
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            for metric in re.findall(r'"semblend:([a-z_]+)"', target["expr"]):
                base = re.sub(r"_(total|bucket)$", "", metric)
                assert base in names, f"{panel['title']}: {metric}"


def test_the_chart_carries_the_same_dashboard():
    inside = CHART / "dashboards" / DASHBOARD.name
    assert inside.read_text(encoding="utf-8") == DASHBOARD.read_text(encoding="utf-8")


def test_the_compose_file_starts_what_exists():
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert {"nats", "worker-a", "worker-b", "gateway", "prometheus", "grafana"} == set(services)
    gateway = services["gateway"]["command"]
    workers = {text.partition("=")[0] for text in gateway if "=http" in text}
    ids = {
        service["environment"]["SEMBLEND_WORKER_ID"]
        for service in services.values()
        if "SEMBLEND_WORKER_ID" in service.get("environment", {})
    }
    assert workers == ids
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).exists(), source
            else:
                assert source in compose["volumes"]
        if "build" in service:
            context = DEPLOY / "compose" / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).exists()


def test_flags_the_deployments_use_are_the_commands_own():
    from typer.main import get_command

    from semblend.cli.main import app

    commands = get_command(app).commands
    gateway = (CHART / "templates" / "gateway.yaml").read_text(encoding="utf-8")
    worker = (CHART / "templates" / "workers.yaml").read_text(encoding="utf-8")
    for name, text in (("route", gateway), ("serve", worker)):
        flags = set(re.findall(r"- (--[a-z-]+)", text))
        known = {flag for parameter in commands[name].params for flag in parameter.opts}
        assert flags
        assert flags <= known


def test_values_and_their_schema_name_the_same_things():
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    properties = {k: v for k, v in schema["properties"].items() if k != "global"}
    assert set(values) == set(properties) == set(schema["required"])
    for name, part in properties.items():
        assert set(values[name]) == set(part["properties"]), name
        assert part["additionalProperties"] is False
    used = set(
        re.findall(
            r"\.Values\.(\w+\.\w+)",
            "".join(p.read_text(encoding="utf-8") for p in (CHART / "templates").iterdir()),
        )
    )
    defined = {f"{name}.{key}" for name, part in values.items() for key in part}
    assert used == defined, "every value is used, and every one used is defined"


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_the_chart_renders_and_refuses_wrong_values():
    def render(*settings):
        flags = [part for setting in settings for part in ("--set", setting)]
        command = ["helm", "template", "fleet", str(CHART), *flags]
        return subprocess.run(command, capture_output=True, text=True)

    everything = render(SECRET, "serviceMonitor.enabled=true", "dashboard.enabled=true")
    assert everything.returncode == 0, everything.stderr
    kinds = [part["kind"] for part in yaml.safe_load_all(everything.stdout) if part]
    assert sorted(kinds) == [
        "ConfigMap",
        "Deployment",
        "Secret",
        "Service",
        "Service",
        "ServiceMonitor",
        "StatefulSet",
    ]
    assert render().returncode != 0, "a fleet without a secret"
    assert render(SECRET, "worker.replicas=0").returncode != 0
    assert render(SECRET, "worker.unknown=1").returncode != 0
    assert render("secret.namespaceSecret=short").returncode != 0
