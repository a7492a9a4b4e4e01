"""What is deployed, without containers: its commands, names, ports, volumes, variables and checks.

    python -m tests.fleet.deployed_inside FOLDER BIN compose
    python -m tests.fleet.deployed_inside FOLDER BIN chart   (as FOLDER/chart.json has it)

Every service or pod is a machine of its own (tests/fleet/machines.py), started when those it
depends on are healthy by its own check. Its programs are those of BIN, where the wheel is installed
as it is in the image. Not run: images, and whatever else they bring. What is asked of the fleet
then, and its answers, are printed as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.fleet.machines import ROOT, Machines

COMPOSE = ROOT / "deploy" / "compose"
MODELS = ROOT / "models"
BESIDE = Path(sys.executable).parent
"""Where programs are that no image of ours brings: Mooncake's master."""
SECRET = "a secret for the whole fleet"
ENTRYPOINTS = {"semblend": "semblend", "nats": "nats-server"}
"""What the images of services run, by the image's name."""
PROBE = "import urllib.request as r; r.urlopen('http://localhost:{port}{path}', timeout=2)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One machine and what it runs."""

    name: str
    command: tuple[str, ...]
    health: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, Path] = field(default_factory=dict)
    after: tuple[str, ...] = ()


def main() -> None:
    folder, binaries, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    services = of_chart(folder) if kind == "chart" else of_compose(folder)
    machines = Machines(folder, *(service.name for service in services))
    named = {service.name: service for service in services}
    for service in services:
        for other in service.after:
            _await_health(machines, named[other], binaries)
        command, env = service.command, _environment(service, binaries)
        machines.start(service.name, command, env=env, mounts=service.mounts)
    _await_health(machines, services[-1], binaries)
    workers = {s.name.partition(".")[0]: s.name for s in services if "worker" in s.name}
    targets = [] if kind == "chart" else _scraped_by_prometheus()
    print(json.dumps(_ask(f"http://{services[-1].name}:8080", workers, targets)))


# -- the compose file ------------------------------------------------------------------


def of_compose(folder: Path) -> list[Service]:
    """The services we can run, each behind those it depends on, the gateway last."""
    text = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    # The one variable the file asks for must be given, as compose would insist.
    text = re.sub(r"\$\{SEMBLEND_NAMESPACE_SECRET:\?[^}]*\}", SECRET, text)
    assert "${" not in text
    listed = yaml.safe_load(text)["services"]
    services = []
    for name, each in listed.items():
        program = ENTRYPOINTS.get(str(each["image"]).partition(":")[0])
        if program is None:
            continue
        kind, *check = each["healthcheck"]["test"]
        assert kind == "CMD"
        services.append(
            Service(
                name=name,
                command=(program, *map(str, each["command"])),
                health=tuple(check),
                env={key: str(value) for key, value in each.get("environment", {}).items()},
                mounts=_volumes(each, folder),
                after=tuple(each.get("depends_on", {})),
            )
        )
    return services


def _volumes(service: dict[str, Any], folder: Path) -> dict[str, Path]:
    mounts = {}
    for volume in service.get("volumes", []):
        source, target, *_ = volume.split(":")
        here = (COMPOSE / source).resolve() if source.startswith(".") else folder / f"{source}.vol"
        here.mkdir(exist_ok=True)
        mounts[target] = here
    return mounts


def _scraped_by_prometheus() -> list[str]:
    config = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text(encoding="utf-8"))
    return [
        str(target)
        for job in config["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    ]


# -- the chart -------------------------------------------------------------------------


def of_chart(folder: Path) -> list[Service]:
    """NATS and Mooncake's master as the values name them, and the pods, the gateway's last."""
    parts = json.loads((folder / "chart.json").read_text(encoding="utf-8"))
    by_kind = {part["kind"]: part for part in parts}
    secrets = {by_kind["Secret"]["metadata"]["name"]: by_kind["Secret"]["stringData"]}
    workers = by_kind["StatefulSet"]
    name, domain = workers["metadata"]["name"], workers["spec"]["serviceName"]
    pods = [(f"{name}-{i}.{domain}", workers) for i in range(workers["spec"]["replicas"])]
    nats = Service(
        name="nats",
        command=("nats-server", "-js", "-sd", "/data", "-m", "8222"),
        health=("python", "-c", PROBE.format(port=8222, path="/healthz")),
        mounts={"/data": _made(folder / "nats.vol")},
    )
    master = Service(
        name="master",
        command=(f"{BESIDE}/mooncake_master", "-port", "50051", "-metrics_port", "9103"),
        health=("python", "-c", "import socket; socket.create_connection(('localhost', 50051))"),
    )
    return [
        nats,
        master,
        *(_pod(host, part, secrets, after=("nats", "master")) for host, part in pods),
        _pod("gateway", by_kind["Deployment"], secrets, after=tuple(host for host, _ in pods)),
    ]


def _pod(
    host: str, part: dict[str, Any], secrets: dict[str, dict[str, str]], *, after: tuple[str, ...]
) -> Service:
    (container,) = part["spec"]["template"]["spec"]["containers"]
    env = {}
    for variable in container["env"]:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            asked = source["secretKeyRef"]
            env[variable["name"]] = secrets[asked["name"]][asked["key"]]
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.name"
            env[variable["name"]] = host.partition(".")[0]
        else:
            env[variable["name"]] = str(variable["value"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    probe = container["readinessProbe"]["httpGet"]
    return Service(
        name=host,
        command=("semblend", *map(str, container["args"])),
        health=("python", "-c", PROBE.format(port=ports[probe["port"]], path=probe["path"])),
        env=env,
        mounts={"/models": MODELS},
        after=after,
    )


# -- both ------------------------------------------------------------------------------


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _environment(service: Service, binaries: Path) -> dict[str, str]:
    """The service's own variables, and nothing of ours but where programs are."""
    return {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HOME": "/tmp",
        **service.env,
    }


def _await_health(machines: Machines, service: Service, binaries: Path) -> None:
    command, env = machines.command(service.name, service.health), _environment(service, binaries)
    deadline = time.monotonic() + 120
    while subprocess.run(command, env=env, capture_output=True).returncode:
        said = (machines.folder / f"{service.name}.log").read_text()[-3000:]
        assert time.monotonic() < deadline, f"{service.name} is not healthy:\n{said}"
        time.sleep(0.5)


def _ask(gateway: str, workers: dict[str, str], targets: list[str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    document = " ".join(
        f"The keeper of house {page} counted {page * 37 % 101} lamps before the evening came."
        for page in range(90)
    )
    with httpx.Client(trust_env=False, timeout=120) as client:
        model = client.get(f"{gateway}/v1/models").json()["data"][0]["id"]

        def ask(prompt: str, url: str = gateway) -> dict[str, Any]:
            body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0}
            reply = client.post(f"{url}/v1/completions", json=body)
            headers = {k: v for k, v in reply.headers.items() if k.startswith("x-sem")}
            return {"status": reply.status_code, "headers": headers, "body": reply.json()}

        said["first"] = ask(document + " How many lamps has house 37?")
        deadline = time.monotonic() + 60
        body = {"model": model, "prompt": "Read this, please. " + document + " And house 41?"}
        while True:
            placed = client.post(f"{gateway}/semblend/placement", json=body).json()
            if placed["choice"] != "router" or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        said["placed"] = placed
        said["second"] = ask(body["prompt"])
        # Who has never seen the document fetches it, once the news have arrived.
        (other,) = set(workers) - {said["first"]["headers"]["x-semblend-worker"]}
        for attempt in range(50):
            lead = f"This is reading number {attempt} of it. "
            said["elsewhere"] = ask(lead + document, f"http://{workers[other]}:8000")
            if said["elsewhere"]["headers"]["x-semblend-outcome"] == "materialised":
                break
        said["scraped"] = {t: client.get(f"http://{t}/metrics").text for t in targets}
    return said


if __name__ == "__main__":
    main()
