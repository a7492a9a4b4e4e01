"""Two real engines behind a real gateway and log: reuse where the donor is, and never a failure."""

import numpy as np
import pytest

from semblend.engine.model import load_model
from tests.fleet.engines import MODEL, Gateway, Worker, ask, serving
from tests.fleet.support import slow, until

pytestmark = slow

DOCUMENTS = [np.random.default_rng(seed).integers(300, 4000, 700).tolist() for seed in range(8)]
QUESTION = np.random.default_rng(99).integers(300, 4000, 40).tolist()


@pytest.fixture(scope="module")
def model():
    return load_model(str(MODEL), device="cpu", dtype="float32")


@pytest.fixture
def fleet(nats_server, model):
    workers = []

    class Fleet:
        server = nats_server

        def worker(self, name, **changes):
            workers.append(Worker(model, name, nats_server.url, **changes))
            return workers[-1]

        def gateway(self, *among, lease_s=30.0, **changes):
            return Gateway(nats_server.url, list(among), lease_s=lease_s, **changes)

    try:
        yield Fleet()
    finally:
        for one in workers:
            one.close()


def moved(number, lead=64):
    """A prompt that holds a document behind another beginning."""
    start = np.random.default_rng(1000 + number + lead).integers(300, 4000, lead).tolist()
    return start + DOCUMENTS[number] + QUESTION


def teach(worker, number):
    assert worker.ask(DOCUMENTS[number] + [7, 8, 9]).status_code == 200
    worker.engine.donors.wait()


def test_a_request_reaches_its_donor_and_the_reuse_is_confirmed_there(fleet):
    a, b = fleet.worker("a"), fleet.worker("b")
    teach(a, 0)
    teach(b, 1)
    gateway = fleet.gateway(a, b)
    with serving(gateway) as url:
        gateway.knows(a, b)
        for number, owner in ((0, a), (1, b), (0, a), (1, b)):
            reply = ask(url, moved(number))
            assert reply.status_code == 200
            assert reply.headers["x-semblend-worker"] == owner.name
            assert reply.headers["x-semantic-route"] == "semantic_placement"
            # The router's claim and the engine's confirmation are two things, and both are there.
            assert reply.headers["x-semblend-placement"] == "donor"
            assert reply.headers["x-semblend-outcome"] == "materialised"
            assert int(reply.headers["x-semblend-reused-tokens"]) > 600
        nobody = ask(url, moved(5))
        assert nobody.headers["x-semantic-route"] == "router"
        assert nobody.headers["x-semblend-outcome"] == "cold"


def test_the_gateway_counts_placements_and_confirmations_apart(fleet):
    import httpx

    a = fleet.worker("a", discovery_only=True)
    teach(a, 0)
    gateway = fleet.gateway(a)
    with serving(gateway) as url:
        gateway.knows(a)
        cost = ask(url, moved(0))
        assert cost.headers["x-semblend-outcome"] == "discovery_only"
        text = httpx.get(f"{url}/metrics", trust_env=False).text
    assert 'semblend:confirmed_total{outcome="discovery_only"} 1.0' in text
    assert 'semblend:confirmed_total{outcome="materialised"} 0.0' in text


def test_an_exact_prefix_is_placed_as_one(fleet):
    a, b = fleet.worker("a"), fleet.worker("b")
    teach(b, 2)
    gateway = fleet.gateway(a, b, can_reuse=False)
    with serving(gateway) as url:
        gateway.knows(a, b)
        reply = ask(url, DOCUMENTS[2] + QUESTION)
        assert reply.headers["x-semblend-worker"] == "b"
        assert reply.headers["x-semantic-route"] == "exact_prefix"


def test_tenants_never_see_each_others_donors(fleet):
    a, b = fleet.worker("a"), fleet.worker("b")
    b.ask(DOCUMENTS[0] + [1], headers={"x-tenant-id": "one"})
    b.engine.donors.wait()
    gateway = fleet.gateway(a, b)
    with serving(gateway) as url:
        gateway.knows(a, b)
        mine = ask(url, moved(0), headers={"x-tenant-id": "one"})
        assert mine.headers["x-semblend-outcome"] == "materialised"
        theirs = ask(url, moved(0, lead=80), headers={"x-tenant-id": "two"})
        assert theirs.headers["x-semantic-route"] == "router"
        assert theirs.headers["x-semblend-outcome"] == "cold"


def test_streams_pass_through_as_they_come(fleet):
    import httpx

    a = fleet.worker("a", tenants=False)
    gateway = fleet.gateway(a, tenants=False)
    body = {"model": "m", "prompt": QUESTION, "max_tokens": 4, "stream": True, "temperature": 0}
    with serving(gateway) as url, httpx.Client(trust_env=False, timeout=60) as client:
        # Asked first: once answered, the prompt is a donor as soon as the news arrive.
        explained = client.post(f"{url}/semblend/placement", json=body).json()
        assert explained["choice"] == "router"
        assert explained["explanation"]
        with client.stream("POST", f"{url}/v1/completions", json=body) as reply:
            through = list(reply.iter_lines())
        assert through[-2:] == ["data: [DONE]", ""] or "data: [DONE]" in through
        assert client.get(f"{url}/v1/models").json()["data"][0]["id"] == "m"
        assert client.get(f"{url}/health").status_code == 200
        refused = client.post(f"{url}/v1/completions", json={"model": "m"})
        assert refused.status_code == 400
        assert refused.headers["x-semblend-worker"] == "a"


def test_a_killed_worker_costs_no_request(fleet):
    a, b = fleet.worker("a"), fleet.worker("b")
    teach(b, 0)
    # A lease so long that the gateway still believes in the worker.
    gateway = fleet.gateway(a, b, lease_s=300.0)
    with serving(gateway) as url:
        gateway.knows(a, b)
        b.crash()
        first = ask(url, moved(0))
        assert first.status_code == 200
        assert first.headers["x-semblend-worker"] == "a"
        assert first.headers["x-semblend-retries"] == "1"
        assert first.headers["x-semantic-route"] == "router", "a choice not kept is not claimed"
        again = ask(url, moved(0, lead=96))
        assert again.status_code == 200
        assert again.headers["x-semblend-retries"] == "0", "it is tried once, and not again"


def test_evictions_are_followed_and_nothing_stale_is_claimed(fleet):
    a, b = fleet.worker("a"), fleet.worker("b")
    for number in range(3):
        teach(b, number)
    gateway = fleet.gateway(a, b)
    with serving(gateway) as url:
        gateway.knows(a, b)
        b.engine.drop_donors()
        gateway.knows(a, b)
        reply = ask(url, moved(1))
        assert reply.status_code == 200
        assert reply.headers["x-semantic-route"] == "router"


def test_a_stale_placement_is_computed_not_failed(fleet):
    """The directory is made late on purpose: the worker must notice by itself."""
    a, b = fleet.worker("a"), fleet.worker("b")
    teach(b, 0)
    gateway = fleet.gateway(a, b)
    with serving(gateway) as url:
        gateway.knows(a, b)
        fleet.server.stop()
        b.engine.drop_donors()
        b.engine.flush_prefix_cache()
        reply = ask(url, moved(0))
        assert reply.status_code == 200
        assert reply.headers["x-semblend-placement"] == "donor"
        assert reply.headers["x-semblend-outcome"] == "cold"
        assert reply.headers["x-semblend-reused-tokens"] == "0"
        fleet.server.start()
        gateway.knows(a, b)


def test_small_caps_and_many_prompts_end_in_agreement(fleet):
    """Evictions by the engines' own caps, all through the log: equal after quiescence."""
    a, b = (fleet.worker(name, donor_tokens=1500) for name in "ab")
    gateway = fleet.gateway(a, b)
    with serving(gateway) as url:
        random = np.random.default_rng(3)
        for number in range(24):
            tokens = random.integers(300, 4000, int(random.integers(100, 400))).tolist()
            assert ask(url, tokens, max_tokens=1).status_code == 200
            if number == 12:
                fleet.server.stop()
            if number == 16:
                fleet.server.start()
        for one in (a, b):
            one.engine.donors.wait()
        gateway.knows(a, b)
        assert a.engine.stats().registrations + b.engine.stats().registrations > len(
            a.truth() | b.truth()
        ), "some were evicted"


def test_a_donor_comes_from_another_worker_bit_for_bit(fleet, tmp_path):
    shared = {"transport": f"folder:{tmp_path / 'shared'}"}
    a, b = fleet.worker("a", **shared), fleet.worker("b", **shared)
    teach(a, 0)
    a.member.exporter.wait()
    target = moved(0)
    until(lambda: _shared(b), "the shared donor to be announced")
    there = b.ask(target, logprobs=1)
    assert there.headers["x-semblend-outcome"] == "materialised"
    assert int(there.headers["x-semblend-reused-tokens"]) > 600
    here = a.ask(target, logprobs=1)
    assert here.headers["x-semblend-outcome"] == "materialised"
    same = [reply.json()["choices"][0]["logprobs"]["token_logprobs"] for reply in (there, here)]
    assert same[0] == same[1]
    assert b.member.importer.fetched == 1


def _places(worker):
    """Where the worker's directory says the living ranks' donors are."""
    directory = worker.member.directory
    index, spoken = directory._index, frozenset().union(*directory.donor_keys().values())
    rows = index.rows.live_rows()
    rows = rows[np.isin(index.rows.key[rows], np.array(sorted(spoken), dtype=np.uint64))]
    return index.rows.places[rows].tolist()


def _shared(worker):
    return 3 in _places(worker)


@pytest.mark.parametrize("harm", ["removed", "damaged"])
def test_a_shared_donor_that_is_gone_or_damaged_is_computed(fleet, tmp_path, harm):
    folder = tmp_path / "shared"
    shared = {"transport": f"folder:{folder}"}
    a, b = fleet.worker("a", **shared), fleet.worker("b", **shared)
    teach(a, 0)
    a.member.exporter.wait()
    until(lambda: _shared(b), "the shared donor to be announced")
    for path in folder.iterdir():
        if harm == "removed":
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
    reply = b.ask(moved(0))
    assert reply.status_code == 200
    assert reply.headers["x-semblend-outcome"] == "cold"
    assert b.member.importer.failed == 1


def test_an_eviction_at_home_leaves_the_shared_copy_known_and_usable(fleet, tmp_path):
    shared = {"transport": f"folder:{tmp_path / 'shared'}"}
    a, b = fleet.worker("a", **shared), fleet.worker("b", **shared)
    teach(a, 0)
    a.member.exporter.wait()
    until(lambda: _shared(b), "the shared donor to be announced")
    a.engine.drop_donors()
    a.member.announcer.publisher.wait()
    until(lambda: _only_shared(b), "the relocation")
    reply = b.ask(moved(0))
    assert reply.headers["x-semblend-outcome"] == "materialised"


def _only_shared(worker):
    return _places(worker) == [2]
