"""A real SGLang worker in a fleet: what its tree holds is announced, and nothing else.

Its own K/V events are followed beside that: they must tell the same story.
"""

import numpy as np

from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.follower import LogFollower
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.placement.chooser import Choice, WorkerLoad, choose
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.residency.follower import CacheFeed, CacheFollower
from semblend.fleet.residency.tracker import ResidencyTracker
from semblend.integration.sglang.namespaces import isolation_of
from tests.fleet.engines import SLOW_PREFILL
from tests.fleet.line_workers import ROOT, found_by_a_gateway, line_worker
from tests.fleet.support import need_environment, slow, until

pytestmark = slow

PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
NAME = ("sglang-a", 0)


def test_an_sglang_worker_announces_donors_reuses_them_and_takes_evicted_ones_back(
    nats_server, tmp_path
):
    need_environment(PYTHON, "SGLang", "scripts/sglang_env.sh")
    held = Directory(SketchIndex(max_donors=64, max_postings=9000), lease_s=60.0)
    follower = LogFollower(held, LogOptions(url=nats_server.url), idle_s=0.1)
    blocks = ResidencyTracker(lost=lambda *_: None, cleared=lambda *_: None)
    feed = CacheFeed(
        worker_id="sglang-a",
        endpoint=f"ipc://{tmp_path}/events",
        replay_endpoint=f"ipc://{tmp_path}/replay",
    )
    cache = CacheFollower(
        feed, apply=lambda name, batch: blocks.apply(name, batch.events), missed=blocks.reset
    )
    try:
        with line_worker(
            PYTHON,
            *("tests.fleet.sglang_worker", str(tmp_path)),
            worker_id="sglang-a",
            nats_url=nats_server.url,
            folder=tmp_path,
        ) as worker:
            random = np.random.default_rng(1)
            document = random.integers(300, 4000, 700)
            first = worker.ask({"tokens": [*document.tolist(), 5, 6]})
            assert first["cached"] == 0
            until(lambda: held.donor_keys().get(NAME), "the donor to be announced")
            until(lambda: blocks.resident_blocks(NAME) == first["held"] > 700, "its blocks")

            target = np.concatenate((random.integers(300, 4000, 64), document, [7, 8]))
            salt = isolation_of(None, None)
            found = found_by_a_gateway(held, target, cache_salt=salt)
            loads = [WorkerLoad(worker_id="elsewhere"), WorkerLoad(worker_id="sglang-a")]
            placed = choose(len(target), found, loads, SLOW_PREFILL)
            assert placed.choice is Choice.DONOR
            assert placed.option.worker_id == "sglang-a"
            for other in (isolation_of("tenant-b", None), isolation_of(None, "salt")):
                assert not found_by_a_gateway(held, target, cache_salt=other).holdings

            reused = worker.ask({"tokens": target.tolist()})
            assert reused["semblend"]["outcome"] == "materialised", reused
            assert reused["cached"] > 500
            assert len(held.donor_keys()[NAME]) == 1, "approximate K/V is never announced"

            assert worker.ask({"evict": True}) == {"donors": 0}
            until(lambda: not held.donor_keys().get(NAME), "the eviction to be heard of")
            until(lambda: not blocks.resident_blocks(NAME), "the blocks to go")
            cold = worker.ask({"tokens": target.tolist()})
            assert cold["cached"] == 0
            until(lambda: held.donor_keys().get(NAME), "what was computed exactly")
            assert cache.gaps == 0
    finally:
        cache.close()
        follower.close()
