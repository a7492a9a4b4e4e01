"""What is deployed works: the very commands of compose file and chart, between machines."""

import json
import re
from importlib.util import find_spec

import pytest

from tests.fleet.deployed_inside import COMPOSE, SECRET
from tests.fleet.machines import ROOT, inside
from tests.fleet.support import need, need_own_network, slow


def fleet_answers(folder, wheel, kind):
    """A request, its placement, the same document elsewhere: reused where it was computed."""
    need_own_network()
    arguments = (str(folder), str(wheel.semblend.parent), kind)
    said = json.loads(inside("tests.fleet.deployed_inside", *arguments).splitlines()[-1])
    assert said["first"]["status"] == said["second"]["status"] == 200
    first, second = said["first"]["headers"], said["second"]["headers"]
    assert first["x-semantic-route"] == "router"
    owner = first["x-semblend-worker"]
    assert said["placed"]["choice"] == "donor", said["placed"]["explanation"]
    assert said["placed"]["worker"] == owner
    assert second["x-semblend-worker"] == owner
    assert second["x-semantic-route"] == "semantic_placement"
    assert second["x-semblend-outcome"] == "materialised", "the bundled model has a certificate"
    # The other worker had never computed the document: its K/V came through the store.
    elsewhere = said["elsewhere"]["headers"]
    assert elsewhere["x-semblend-worker"] != owner
    assert elsewhere["x-semblend-outcome"] == "materialised"
    (log,) = folder.glob(f"{elsewhere['x-semblend-worker']}*.log")
    assert '"fetched"' in log.read_text(encoding="utf-8"), "it was not fetched, but computed"
    return said, owner


@slow
def test_the_compose_files_commands_make_a_fleet_that_places_reuses_and_shares(
    tmp_path, installed_wheel
):
    said, owner = fleet_answers(tmp_path, installed_wheel, "compose")
    assert owner in ("worker-a", "worker-b")
    # What Prometheus is told to scrape is there, under the names it is told.
    assert set(said["scraped"]) == {"worker-a:8000", "worker-b:8000", "gateway:8080"}
    assert all("semblend:" in text for text in said["scraped"].values())
    assert list((tmp_path / "shared.vol" / "donors").iterdir()), "the volume holds the K/V"


@slow
def test_the_charts_pods_make_a_fleet_that_shares_by_mooncake_store(
    tmp_path, installed_wheel, render
):
    need(find_spec("mooncake"), "mooncake-transfer-engine-non-cuda")
    store = {"SEMBLEND_TRANSPORT": "mooncake:master:50051"}
    parts = render({"secret": {"namespaceSecret": SECRET}, "worker": {"settings": store}})
    (tmp_path / "chart.json").write_text(json.dumps(parts), encoding="utf-8")
    _, owner = fleet_answers(tmp_path, installed_wheel, "chart")
    assert owner in ("fleet-worker-0", "fleet-worker-1")


@pytest.fixture(scope="module")
def kubernetes():
    return pytest.importorskip("kubernetes")


def test_what_the_chart_renders_is_what_kubernetes_knows(render, kubernetes):
    """By the models of its own API: every field known, every one that is needed there."""
    everything = {
        "serviceMonitor": {"enabled": True},
        "dashboard": {"enabled": True},
        "model": {"existingClaim": "models"},
        "certificates": {"configMap": "mine", "verify": True},
    }
    parts = render({"secret": {"namespaceSecret": SECRET}, **everything})
    for part in parts:
        if part["kind"] != "ServiceMonitor":  # Prometheus's own, which has no model here.
            assert understood(kubernetes, part) == part
    worker = next(part for part in parts if part["kind"] == "StatefulSet")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    container["readynessProbe"] = container.pop("readinessProbe")
    assert understood(kubernetes, worker) != worker, "a field nobody knows is dropped"
    del worker["spec"]["selector"]
    with pytest.raises(ValueError, match="selector"):
        understood(kubernetes, worker)


def understood(kubernetes, part):
    """A manifest as Kubernetes' own client reads it, written out again."""
    reader = kubernetes.client.ApiClient()
    read = reader.deserialize(json.dumps(part), f"V1{part['kind']}", "application/json")
    return reader.sanitize_for_serialization(read)


def test_the_image_owns_the_places_it_writes_to():
    """A named volume is whose the image's folder is: without one it is root's, and we are not."""
    compose = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    docker = (ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^USER \d+", docker, re.MULTILINE)
    written = set(re.findall(r"^ +- (?:shared|gateway):(/\w+)$", compose, re.MULTILINE))
    assert written == {"/shared", "/state"}
    owned = re.search(r"install -d -o semblend -g semblend ([^\\\n&]+)", docker)
    assert owned is not None
    assert written <= set(owned[1].split())
