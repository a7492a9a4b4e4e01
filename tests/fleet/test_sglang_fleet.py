"""A real SGLang worker in a fleet: what its tree holds is announced, and nothing else.

Its own K/V events are followed beside that, over a relay that speaks the older encoding and loses
batches when told to. The oracle is the tree itself: the donors it holds whole.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.directory.log_follower import LogFollower
from semblend.fleet.keys import donor_key
from semblend.fleet.placement.chooser import Choice, WorkerLoad, choose
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.residency.cache_follower import CacheFeed
from semblend.fleet.residency.caches import FollowedCaches
from semblend.integration.isolation import by_extra_key
from tests.fleet.cache_relay import Relay, as_arrays
from tests.fleet.engines import SLOW_PREFILL
from tests.fleet.line_workers import ROOT, SECRET, found_by_a_gateway, line_worker
from tests.fleet.support import need_environment, slow, until

pytestmark = slow

PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
NAME = ("sglang-a", 0)


@pytest.fixture(scope="module")
def fleet(module_nats_server, tmp_path_factory):
    """A worker, and a replica of the directory that follows log and cache."""
    need_environment(PYTHON, "SGLang", "scripts/sglang_env.sh")
    folder = tmp_path_factory.mktemp("sglang")
    held = Directory(SketchIndex(max_donors=64, max_postings=9000), lease_s=60.0)
    relay = Relay(folder)
    relay.encode = as_arrays
    relay.carry(f"ipc://{folder}/events", f"ipc://{folder}/replay")
    feed = CacheFeed(
        worker_id=NAME[0], endpoint=relay.endpoint, replay_endpoint=relay.replay, check_s=0.2
    )
    caches = FollowedCaches(held, [feed], secret=SECRET.encode())
    options = LogOptions(url=module_nats_server.url)
    follower = LogFollower(held, options, apply=caches.donors.apply, idle_s=0.1)
    try:
        with line_worker(
            PYTHON,
            *("tests.fleet.sglang_worker", str(folder)),
            worker_id=NAME[0],
            nats_url=module_nats_server.url,
            folder=folder,
        ) as worker:
            yield SimpleNamespace(worker=worker, held=held, relay=relay, caches=caches)
    finally:
        follower.close()
        caches.close()
        relay.close()


def document(seed, size=700):
    return np.random.default_rng(seed).integers(300, 4000, size).tolist()


def moved(seed, lead=9):
    return [*document(seed + 100 * lead, 64), *document(seed), 7, 8]


def agrees(fleet, said):
    """The directory knows exactly the donors that the tree holds whole."""
    truth = {donor_key(*NAME, donor_id) for donor_id in said["whole"]}
    until(lambda: fleet.held.donor_keys().get(NAME) == truth, f"the directory to know {truth}")
    blocks = fleet.caches.donors.tracker
    until(lambda: blocks.resident_blocks(NAME) >= said["pages"], "the tree's pages to be known")


def placed(fleet, tokens, **keys):
    found = found_by_a_gateway(fleet.held, tokens, cache_salt=by_extra_key(None, keys.get("salt")))
    loads = [WorkerLoad(worker_id="elsewhere"), WorkerLoad(worker_id=NAME[0])]
    return choose(len(tokens), found, loads, SLOW_PREFILL)


def test_donors_are_announced_placed_on_and_taken_back_when_evicted(fleet):
    first = fleet.worker.ask({"tokens": [*document(1), 5, 6]})
    assert first["cached"] == 0
    assert len(first["whole"]) == first["donors"] == 1
    agrees(fleet, first)
    assert fleet.caches.donors.tracker.resident_blocks(NAME) == first["pages"] > 700

    target = moved(1)
    chosen = placed(fleet, target)
    assert chosen.choice is Choice.DONOR
    assert chosen.option.worker_id == NAME[0]
    for other in (by_extra_key("tenant-b", None), by_extra_key(None, "salt")):
        assert not found_by_a_gateway(fleet.held, target, cache_salt=other).holdings

    reused = fleet.worker.ask({"tokens": target})
    assert reused["semblend"]["outcome"] == "materialised", reused
    assert reused["cached"] > 500
    agrees(fleet, reused)
    assert len(reused["whole"]) == 1, "approximate K/V is never announced"

    evicted = fleet.worker.ask({"evict": True})
    assert (evicted["donors"], evicted["pages"]) == (0, 0)
    agrees(fleet, evicted)
    until(lambda: not fleet.caches.donors.tracker.resident_blocks(NAME), "the blocks to go")
    cold = fleet.worker.ask({"tokens": target})
    assert cold["cached"] == 0
    agrees(fleet, cold)
    agrees(fleet, fleet.worker.ask({"flush": True}))
    assert fleet.caches.followers[0].gaps == 0


@pytest.mark.parametrize("salt", [None, "salt"])
def test_a_donor_is_known_by_the_engines_word_where_the_worker_is_silent(fleet, salt):
    """Evicted behind the adapter's back: only the engine's own events tell."""
    keys = {} if salt is None else {"cache_salt": salt}
    tokens = [*document(2), 5, 6]
    agrees(fleet, fleet.worker.ask({"tokens": tokens, **keys}))
    assert placed(fleet, moved(2), salt=salt).choice is Choice.DONOR

    evicted = fleet.worker.ask({"evict": "alone"})
    assert evicted["donors"] > 0, "the worker has not noticed"
    assert evicted["whole"] == []
    agrees(fleet, evicted)
    assert placed(fleet, moved(2), salt=salt).choice is Choice.ROUTER

    again = fleet.worker.ask({"tokens": tokens, "hints": {"reuse": False}, **keys})
    assert again["whole"]
    agrees(fleet, again)
    assert placed(fleet, moved(2), salt=salt).choice is Choice.DONOR
    agrees(fleet, fleet.worker.ask({"flush": True}))


def test_batches_that_are_lost_on_the_way_are_fetched(fleet):
    agrees(fleet, fleet.worker.ask({"tokens": [*document(3), 5, 6]}))
    follower = fleet.caches.followers[0]
    replayed, gaps = follower.replayed, follower.gaps
    fleet.relay.losing = True
    agrees(fleet, fleet.worker.ask({"evict": "alone"}))
    assert placed(fleet, moved(3)).choice is Choice.ROUTER
    assert follower.replayed > replayed
    assert follower.gaps == gaps
    fleet.relay.losing = False
    agrees(fleet, fleet.worker.ask({"flush": True}))


def test_batches_that_are_lost_for_good_have_the_worker_look_again(fleet):
    agrees(fleet, fleet.worker.ask({"tokens": [*document(4), 5, 6]}))
    follower = fleet.caches.followers[0]
    gaps = follower.gaps
    fleet.relay.losing = fleet.relay.silent = True
    fleet.worker.ask({"evict": True})
    fleet.worker.ask({"tokens": [*document(5), 5, 6]})
    # What was said is forgotten; the next thing the engine says shows that something is missing.
    fleet.relay.buffer.clear()
    fleet.relay.losing = fleet.relay.silent = False
    said = fleet.worker.ask({"tokens": [*document(6), 5, 6]})
    until(lambda: follower.gaps > gaps, "the gap to be seen")
    until(lambda: placed(fleet, moved(5)).choice is Choice.DONOR, "the worker to look again")
    until(lambda: placed(fleet, moved(6)).choice is Choice.DONOR, "what came after the gap")
    assert placed(fleet, moved(4)).choice is Choice.ROUTER
    assert len(said["whole"]) == 2
    truth = {donor_key(*NAME, donor_id) for donor_id in said["whole"]}
    assert fleet.held.donor_keys()[NAME] == truth
    evicted = fleet.worker.ask({"evict": "alone"})
    assert evicted["donors"] == 2
    agrees(fleet, evicted)
