"""The compose file's fleet works: its very commands, between machines of their own."""

import json
import re

from tests.fleet.compose_inside import COMPOSE
from tests.fleet.machines import ROOT, inside
from tests.fleet.support import need_own_network, slow


@slow
def test_the_compose_files_commands_make_a_fleet_that_places_and_reuses(tmp_path):
    need_own_network()
    said = json.loads(inside("tests.fleet.compose_inside", str(tmp_path)).splitlines()[-1])
    assert said["first"]["status"] == said["second"]["status"] == 200
    first, second = said["first"]["headers"], said["second"]["headers"]
    assert first["x-semantic-route"] == "router"
    owner = first["x-semblend-worker"]
    assert owner in ("worker-a", "worker-b")
    assert said["placed"]["choice"] == "donor", said["placed"]["explanation"]
    assert said["placed"]["worker"] == owner
    assert second["x-semblend-worker"] == owner
    assert second["x-semantic-route"] == "semantic_placement"
    assert second["x-semblend-outcome"] == "materialised", "the bundled model has a certificate"
    # What Prometheus is told to scrape is there, under the names it is told.
    assert set(said["scraped"]) == {"worker-a:8000", "worker-b:8000", "gateway:8080"}
    assert all("semblend:" in text for text in said["scraped"].values())
    # The shared volume holds the donor's K/V.
    assert list((tmp_path / "shared.vol" / "donors").iterdir())


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
