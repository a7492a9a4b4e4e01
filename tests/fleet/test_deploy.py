"""What is deployed says what the code means: settings, flags, metrics and paths exist."""

import json
import re
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from semblend.core.settings import Settings, variable
from tests.fleet.charts import CHART
from tests.fleet.support import need

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def test_every_setting_named_in_a_deployment_is_one():
    known = {variable(name) for name in Settings.model_fields}
    for path in [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.tpl")]:
        named = set(re.findall(r"\bSEMBLEND_[A-Z_]+", path.read_text(encoding="utf-8")))
        if path.name != "values-vllm.yaml":
            assert named <= known, path


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


SECRET = {"secret": {"namespaceSecret": "0123456789abcdef"}}
ON = {"enabled": True}
EVERYTHING = {**SECRET, "serviceMonitor": ON, "dashboard": ON, "alerts": ON}


def test_the_chart_renders_what_it_promises(render):
    kinds = sorted(part["kind"] for part in render(EVERYTHING))
    assert kinds == [
        *("ConfigMap", "Deployment", "PrometheusRule", "Secret", "Service", "Service"),
        *("ServiceMonitor", "StatefulSet"),
    ]
    fewer = {part["kind"] for part in render({**SECRET, "gateway": {"enabled": False}})}
    assert fewer == {"Secret", "Service", "StatefulSet"}
    with pytest.raises(ValueError, match="namespaceSecret"):
        render({})
    named = render({"secret": {"existingSecret": "mine"}})
    assert "Secret" not in {part["kind"] for part in named}
    assert all(
        "mine" in str(part) for part in named if part["kind"] in ("Deployment", "StatefulSet")
    )


def test_rendered_parts_find_each_other(render):
    workers = {"replicas": 3, "settings": {"SEMBLEND_TRANSPORT": "folder:/shared"}}
    parts = render({**EVERYTHING, "worker": workers})
    pods = [part for part in parts if part["kind"] in ("Deployment", "StatefulSet")]
    services = [part for part in parts if part["kind"] == "Service"]
    for part in pods:
        labels = part["spec"]["template"]["metadata"]["labels"]
        assert part["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (container,) = part["spec"]["template"]["spec"]["containers"]
        names = [variable["name"] for variable in container["env"]]
        assert len(set(names)) == len(names)
        ports = {port["name"] for port in container["ports"]}
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
        volumes = {volume["name"] for volume in part["spec"]["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        selecting = [s for s in services if s["spec"]["selector"].items() <= labels.items()]
        assert len(selecting) == 1
        assert selecting[0]["spec"]["ports"][0]["targetPort"] in ports
    secret = next(part for part in parts if part["kind"] == "Secret")
    for part in pods:
        (container,) = part["spec"]["template"]["spec"]["containers"]
        sources = [variable.get("valueFrom", {}) for variable in container["env"]]
        (asked,) = [source["secretKeyRef"] for source in sources if "secretKeyRef" in source]
        assert asked["name"] == secret["metadata"]["name"]
        assert asked["key"] in secret["stringData"]
    workers = next(part for part in pods if part["kind"] == "StatefulSet")
    headless = {s["metadata"]["name"] for s in services if s["spec"].get("clusterIP") == "None"}
    assert workers["spec"]["serviceName"] in headless
    gateway = next(part for part in pods if part["kind"] == "Deployment")
    told = [arg for arg in _arguments(gateway) if arg.startswith("--worker=")]
    name, service = workers["metadata"]["name"], workers["spec"]["serviceName"]
    assert told == [f"--worker={name}-{i}=http://{name}-{i}.{service}:8000" for i in range(3)]


@pytest.mark.parametrize(
    ("given", "source"),
    [
        (
            {"existingClaim": "mine"},
            {"persistentVolumeClaim": {"claimName": "mine", "readOnly": True}},
        ),
        ({"configMap": "mine"}, {"configMap": {"name": "mine"}}),
    ],
    ids=["claim", "config map"],
)
def test_workers_look_for_certificates_in_the_volume_they_are_given(render, given, source):
    def worker(**values):
        parts = render({**SECRET, **values})
        pod = next(p for p in parts if p["kind"] == "StatefulSet")["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        variables = [(v["name"], v.get("value")) for v in container["env"]]
        return pod, container, [v for n, v in variables if n == "SEMBLEND_CERTIFICATE_DIR"]

    pod, container, told = worker(certificates=given)
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "certificates"]
    assert told == [mount["mountPath"]]
    assert mount["readOnly"] is True
    (volume,) = [v for v in pod["volumes"] if v["name"] == "certificates"]
    assert volume == {"name": "certificates", **source}
    own = {"settings": {"SEMBLEND_CERTIFICATE_DIR": "/elsewhere"}}
    assert worker(certificates=given, worker=own)[2] == ["/elsewhere"]
    assert worker()[2] == []
    with pytest.raises(ValueError, match="not both"):
        worker(certificates={"existingClaim": "a", "configMap": "b"})


VERIFIED = {
    "model": {"existingClaim": "models"},
    "certificates": {"verify": True, "configMap": "mine"},
}


def test_an_upgrade_can_be_stopped_where_the_model_would_not_be_certified(render):
    parts = render({**SECRET, **VERIFIED})
    (job,) = [part for part in parts if part["kind"] == "Job"]
    assert set(job["metadata"]["annotations"]["helm.sh/hook"].split(",")) == {
        *("pre-install", "pre-upgrade")
    }
    worker = next(part for part in parts if part["kind"] == "StatefulSet")
    theirs, mine = (part["spec"]["template"]["spec"] for part in (worker, job))
    assert mine["restartPolicy"] == "Never"
    assert mine["volumes"] == theirs["volumes"]
    (his,), (my,) = theirs["containers"], mine["containers"]
    assert my["image"] == his["image"]
    assert my["volumeMounts"] == his["volumeMounts"]
    assert {"name": "SEMBLEND_CERTIFICATE_DIR", "value": "/certificates"} in my["env"]
    assert my["args"][2] == his["args"][1], "the model that is served"
    own = {"settings": {"SEMBLEND_CERTIFICATE_DIR": "/elsewhere"}}
    (job,) = [p for p in render({**SECRET, **VERIFIED, "worker": own}) if p["kind"] == "Job"]
    told = [v["value"] for v in job["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert told == ["/tmp", "/elsewhere"]
    assert not [part for part in render(SECRET) if part["kind"] == "Job"]
    with pytest.raises(ValueError, match="existingClaim"):
        render({**SECRET, "certificates": {"verify": True}})


def test_rendered_commands_are_understood_by_the_program(render):
    from typer.main import get_command

    from semblend.cli.main import app
    from semblend.serve.gateway.options import GatewayOptions, parse_worker

    commands = get_command(app).commands
    for part in render({**EVERYTHING, **VERIFIED}):
        if part["kind"] in ("Deployment", "StatefulSet", "Job"):
            name, *arguments = _arguments(part)
            command = commands[name]
            if name == "certificates":
                command, arguments = command.commands[arguments[0]], arguments[1:]
            read = command.make_context(name, arguments).params
            if name == "route":
                GatewayOptions(workers=tuple(map(parse_worker, read["worker"])))


def _arguments(part):
    (container,) = part["spec"]["template"]["spec"]["containers"]
    return [str(argument) for argument in container["args"]]


@pytest.mark.parametrize(
    ("values", "right"),
    [
        (EVERYTHING, True),
        ({**SECRET, "worker": {"replicas": 0}}, False),
        ({**SECRET, "worker": {"unknown": 1}}, False),
        ({"secret": {"namespaceSecret": "short"}}, False),
        ({**SECRET, "unknown": {}}, False),
        ({**SECRET, "service": {"type": "Sideways"}}, False),
    ],
)
def test_the_schema_takes_right_values_and_refuses_wrong_ones(values, right):
    """As helm applies it: to the chart's own values with the given ones laid over them."""
    need(find_spec("jsonschema"), "jsonschema")
    import jsonschema

    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    merged = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    for name, part in values.items():
        merged[name] = {**merged.get(name, {}), **part}
    assert jsonschema.Draft7Validator(schema).is_valid(merged) is right


def test_the_compose_file_is_one_by_the_compose_specification():
    need(find_spec("jsonschema") and find_spec("compose"), "docker-compose (its specification)")
    import jsonschema

    text = (resources.files("compose") / "config" / "compose_spec.json").read_text()
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    # Younger than this copy of the specification: a project's name.
    assert isinstance(compose.pop("name"), str)
    jsonschema.Draft7Validator(json.loads(text)).validate(compose)
    compose["services"]["gateway"]["comand"] = []
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.Draft7Validator(json.loads(text)).validate(compose)
