"""The compose file's services without containers: its commands, names, ports, volumes and checks.

    python -m tests.fleet.compose_inside FOLDER

Every service is a machine of its own (tests/fleet/machines.py) and is started when those it
depends on are healthy by the file's own checks. Not run: images, and services of images that are
not ours or NATS. What is asked of the fleet then, and its answers, are printed as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.fleet.machines import ROOT, Machines

COMPOSE = ROOT / "deploy" / "compose"
SECRET = "a secret for the whole fleet"
ENTRYPOINTS = {"semblend": "semblend", "nats": "nats-server"}
"""What the images of services run, by the image's name."""


def main() -> None:
    folder = Path(sys.argv[1])
    services = _services()
    machines = Machines(folder, *services)
    for name, service in services.items():
        for other in service.get("depends_on", {}):
            _await_health(machines, other, services[other])
        machines.start(
            name,
            [ENTRYPOINTS[_image(service)], *map(str, service["command"])],
            env=_environment(service),
            mounts=_mounts(service, folder),
        )
    _await_health(machines, "gateway", services["gateway"])
    print(json.dumps(_ask(_published(services["gateway"]))))


def _services() -> dict[str, Any]:
    """Those we can run, each behind those it depends on."""
    text = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    # The one variable the file asks for must be given, as compose would insist.
    text = re.sub(r"\$\{SEMBLEND_NAMESPACE_SECRET:\?[^}]*\}", SECRET, text)
    assert "${" not in text
    listed = yaml.safe_load(text)["services"]
    return {name: each for name, each in listed.items() if _image(each) in ENTRYPOINTS}


def _image(service: dict[str, Any]) -> str:
    return str(service["image"]).partition(":")[0]


def _environment(service: dict[str, Any]) -> dict[str, str]:
    """The service's own variables, and nothing of ours but where programs are."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{ROOT}/.venv/bin:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HOME": "/tmp",
        **{name: str(value) for name, value in service.get("environment", {}).items()},
    }


def _mounts(service: dict[str, Any], folder: Path) -> dict[str, Path]:
    mounts = {}
    for volume in service.get("volumes", []):
        source, target, *_ = volume.split(":")
        here = (COMPOSE / source).resolve() if source.startswith(".") else folder / f"{source}.vol"
        here.mkdir(exist_ok=True)
        mounts[target] = here
    return mounts


def _await_health(machines: Machines, name: str, service: dict[str, Any]) -> None:
    kind, *check = service["healthcheck"]["test"]
    assert kind == "CMD"
    command = machines.command(name, check)
    deadline = time.monotonic() + 120
    while subprocess.run(command, env=_environment(service), capture_output=True).returncode:
        log = machines.folder / f"{name}.log"
        assert time.monotonic() < deadline, f"{name} is not healthy:\n{log.read_text()[-3000:]}"
        time.sleep(0.5)


def _published(service: dict[str, Any]) -> str:
    (published,) = service["ports"]
    return f"http://gateway:{published.rpartition(':')[2]}"


def _ask(gateway: str) -> dict[str, Any]:
    said: dict[str, Any] = {}
    document = " ".join(f"Page {page} speaks of item {page * 37 % 101}." for page in range(90))
    with httpx.Client(trust_env=False, timeout=120) as client:

        def ask(prompt: str) -> dict[str, Any]:
            body = {"model": "m", "prompt": prompt, "max_tokens": 4, "temperature": 0}
            reply = client.post(f"{gateway}/v1/completions", json=body)
            headers = {k: v for k, v in reply.headers.items() if k.startswith("x-sem")}
            return {"status": reply.status_code, "headers": headers, "body": reply.json()}

        said["first"] = ask(document + " What is item 37?")
        deadline = time.monotonic() + 60
        body = {"model": "m", "prompt": "Read this, please. " + document + " And item 74?"}
        while True:
            placed = client.post(f"{gateway}/semblend/placement", json=body).json()
            if placed["choice"] != "router" or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        said["placed"] = placed
        said["second"] = ask(body["prompt"])
        config = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text(encoding="utf-8"))
        said["scraped"] = {
            target: client.get(f"http://{target}/metrics").text
            for job in config["scrape_configs"]
            for group in job["static_configs"]
            for target in group["targets"]
        }
    return said


if __name__ == "__main__":
    main()
