"""Real vLLM workers in a fleet: donors are announced, found, placed to, and moved between them."""

import importlib.util
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.directory.log_follower import LogFollower
from semblend.fleet.placement.chooser import Choice, WorkerLoad, choose
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.residency.cache_follower import CacheFeed
from semblend.fleet.residency.caches import FollowedCaches
from semblend.integration.isolation import by_salt
from tests.fleet.cache_relay import Relay, as_arrays
from tests.fleet.engines import MODEL, SLOW_PREFILL
from tests.fleet.line_workers import ROOT, SECRET, found_by_a_gateway, line_worker
from tests.fleet.machines import inside
from tests.fleet.support import need, need_environment, need_own_network, slow, until

pytestmark = slow

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
VLLM_A = ("vllm-a", 0)
COLD = {"hints": {"reuse": False, "capture": False}}


def text(seed, size):
    return np.random.default_rng(seed).integers(300, 4000, size).astype(np.int32)


def prompt(*parts):
    return np.concatenate(parts).astype(np.int32)


@contextmanager
def vllm(name, nats_server, folder, **settings):
    """A real vLLM, which is spoken to by lines."""
    need_environment(PYTHON, "vLLM", "scripts/vllm_env.sh")
    events = folder / name
    events.mkdir()
    with line_worker(
        PYTHON,
        *("tests.fleet.vllm_worker", str(MODEL), str(events)),
        worker_id=name,
        nats_url=nats_server.url,
        folder=folder,
        **settings,
    ) as worker:

        def ask(tokens, **more):
            return worker.ask({"tokens": tokens.tolist(), **more})

        yield SimpleNamespace(ask=ask, say=worker.ask, leave=worker.leave)


@pytest.fixture
def held(nats_server):
    """What any replica of the directory knows."""
    directory = Directory(SketchIndex(max_donors=64, max_postings=40_000), lease_s=60.0)
    follower = LogFollower(directory, LogOptions(url=nats_server.url), idle_s=0.1)
    yield directory
    follower.close()


def found(held, tokens):
    """What the directory says of a prompt that vLLM workers would be sent."""
    return found_by_a_gateway(held, tokens, cache_salt=by_salt(None))


@pytest.fixture(scope="module")
def followed(module_nats_server, tmp_path_factory):
    """A worker, and a gateway's knowledge of its donors and of its engine's own cache."""
    folder = tmp_path_factory.mktemp("vllm")
    directory = Directory(SketchIndex(max_donors=64, max_postings=40_000), lease_s=60.0)
    relay = Relay(folder)
    relay.encode = as_arrays
    feed = CacheFeed(
        worker_id="vllm-a", endpoint=relay.endpoint, replay_endpoint=relay.replay, check_s=0.2
    )
    caches = FollowedCaches(directory, [feed], secret=SECRET.encode())
    options = LogOptions(url=module_nats_server.url)
    follower = LogFollower(directory, options, apply=caches.donors.apply, idle_s=0.1)
    relay.carry(f"ipc://{folder}/vllm-a/events", f"ipc://{folder}/vllm-a/replay")
    try:
        with vllm("vllm-a", module_nats_server, folder) as worker:
            yield SimpleNamespace(worker=worker, directory=directory, relay=relay, caches=caches)
    finally:
        follower.close()
        caches.close()
        relay.close()


def agrees(followed, *prompts):
    """For every prompt and salt, what is said to be cached is what vLLM's own cache says."""
    asked = [(tokens, salt) for tokens in prompts for salt in (None, "salt")]
    told = followed.worker.say({"held": [[tokens.tolist(), salt] for tokens, salt in asked]})
    truth = told["held"]

    def known():
        residents = [followed.caches.donors.resident(tokens, salt=s) for tokens, s in asked]
        return [each.get(VLLM_A, 0) for each in residents] == truth

    until(known, f"what is known of vLLM's cache to be {truth}")
    return dict(zip(((t.tobytes(), s) for t, s in asked), truth, strict=True))


def placed(followed, tokens, *, can_reuse=True):
    loads = [
        WorkerLoad(worker_id="elsewhere", resident_tokens=0),
        WorkerLoad(
            worker_id="vllm-a", resident_tokens=followed.caches.donors.resident(tokens)[VLLM_A]
        ),
    ]
    held = found(followed.directory, tokens)
    return choose(len(tokens), held, loads, SLOW_PREFILL, can_reuse=can_reuse)


def test_a_vllm_worker_announces_its_donors_and_reuses_them_when_placed_to(followed):
    worker, directory = followed.worker, followed.directory
    document = text(1, 700)
    assert worker.ask(prompt(document, [5, 6]))["cached"] == 0
    until(lambda: directory.donor_keys().get(VLLM_A), "the donor to be announced")
    agrees(followed, document)

    target = prompt(text(2, 64), document, [7, 8])
    chosen = placed(followed, target)
    assert chosen.choice is Choice.DONOR
    assert chosen.option.worker_id == "vllm-a"
    assert found(directory, target).shared is None, "no store was named"

    reused = worker.ask(target)
    assert reused["semblend"]["outcome"] == "materialised", reused
    assert reused["cached"] > 500
    # Its approximate blocks are cached under private names: nobody else's prefix, and not ours.
    assert agrees(followed, target)[target.tobytes(), None] < 128
    assert placed(followed, target, can_reuse=False).option.prefix_tokens < 128


def test_the_exact_prefix_owner_is_who_holds_the_blocks(followed):
    """Evictions, salts, lost batches and a cleared cache; the oracle is vLLM's prefix cache."""
    worker, follower = followed.worker, followed.caches.followers[0]
    documents = [text(seed, 900) for seed in range(30, 36)]
    for number, document in enumerate(documents):
        followed.relay.losing = number in (2, 3)
        worker.ask(prompt(document, [5, 6]), **COLD)
        truth = agrees(followed, *documents)
        assert truth[document.tobytes(), None] == 896
        assert truth[document.tobytes(), "salt"] == 0
        chosen = placed(followed, prompt(document, text(40, 40)))
        assert (chosen.choice, chosen.option.worker_id) == (Choice.EXACT_PREFIX, "vllm-a")
        assert chosen.option.prefix_tokens == 896
    assert truth[documents[0].tobytes(), None] == 0, "it was evicted by those after it"
    assert placed(followed, prompt(documents[0], text(40, 40))).choice is Choice.ROUTER
    assert follower.replayed > 0
    assert follower.gaps == 0

    worker.ask(documents[0], salt="salt", **COLD)
    truth = agrees(followed, *documents)
    assert truth[documents[0].tobytes(), "salt"] == 896
    assert truth[documents[0].tobytes(), None] == 0, "the same tokens under no salt"

    worker.say({"clear": True})
    worker.ask(text(50, 100), **COLD)  # vLLM publishes with its next step
    assert set(agrees(followed, *documents).values()) == {0}


def test_batches_lost_for_good_make_less_known_and_never_more(followed):
    worker, follower = followed.worker, followed.caches.followers[0]
    document, other = text(60, 900), text(61, 900)
    worker.ask(document, **COLD)
    assert agrees(followed, document)[document.tobytes(), None] == 896
    donors = followed.directory.donor_keys()[VLLM_A]
    followed.relay.losing = followed.relay.silent = True
    worker.say({"clear": True})
    worker.ask(text(62, 100), **COLD)
    followed.relay.buffer.clear()
    followed.relay.losing = followed.relay.silent = False
    worker.ask(other, **COLD)
    until(lambda: follower.gaps, "the gap to be seen")
    truth = agrees(followed, document, other)
    assert truth[document.tobytes(), None] == 0
    assert truth[other.tobytes(), None] == 896
    assert followed.directory.donor_keys()[VLLM_A] == donors, "copies outlive the engine's blocks"


def test_a_donor_moves_to_the_vllm_worker_that_needs_it_and_a_damaged_one_does_not(
    nats_server, held, tmp_path
):
    store = tmp_path / "store"
    settings = {"SEMBLEND_TRANSPORT": f"folder:{store}"}
    with (
        vllm("vllm-a", nats_server, tmp_path, **settings) as owner,
        vllm("vllm-b", nats_server, tmp_path, **settings) as other,
    ):
        # Each learns how long its own prefill takes from a prompt of its own.
        other.ask(text(90, 900), salt="warm-up", **COLD)

        documents = [text(seed, 700) for seed in (1, 2, 3)]
        for number, document in enumerate(documents):
            owner.ask(prompt(text(10 + number, 20), document, [5, 6]))

        def target(document, attempt):
            head = text(20 + 10 * document + attempt, 64)
            return prompt(head, documents[document], [7, 8])

        def asked(document, wanted):
            """Ask with new instructions until the other's own replica has heard of the donor."""
            for attempt in range(10):
                tokens = target(document, attempt)
                until(lambda tokens=tokens: found(held, tokens).shared, "the donor to be shared")
                answer = other.ask(tokens, hints={"capture": False})
                if wanted(answer):
                    return tokens, answer
            raise AssertionError(answer)

        # Reused where it was never computed, and with the very same answer.
        tokens, theirs = asked(0, lambda answer: answer["semblend"]["reused_tokens"])
        mine = owner.ask(tokens)
        assert theirs["semblend"]["outcome"] == "materialised", theirs
        assert theirs["semblend"]["donor_ids"][0].startswith("fleet.")
        assert theirs["semblend"]["reused_tokens"] == mine["semblend"]["reused_tokens"] > 600
        assert theirs["tokens"] == mine["tokens"]
        assert theirs["fetched"] == 1

        # One byte of every segment in the store is wrong: nothing of it is used.
        shared_by_owner = list(store.iterdir())
        segments = [file for file in shared_by_owner if file.stat().st_size > 1 << 16]
        assert len(segments) >= 6
        for file in segments:
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
        failed = theirs["failed"]
        tokens, damaged = asked(1, lambda answer: answer["failed"] > failed)
        assert damaged["semblend"]["reused_tokens"] == 0
        cold = other.ask(tokens, salt="cold-1", **COLD)
        assert damaged["tokens"] == cold["tokens"]
        assert cold["fetched"] == 1

        # The owner leaves: what it shared is withdrawn, and the other computes.
        owner.leave()
        assert not [file for file in shared_by_owner if file.exists()]
        tokens = target(2, 0)
        until(lambda: not found(held, tokens).shared, "the goodbye to be heard")
        gone = other.ask(tokens)
        assert gone["semblend"]["reused_tokens"] == 0
        assert gone["tokens"] == other.ask(tokens, salt="cold-2", **COLD)["tokens"]


def test_mooncake_store_carries_a_donor_from_one_vllm_machine_to_another(tmp_path):
    need(importlib.util.find_spec("mooncake"), "mooncake-transfer-engine-non-cuda")
    need_environment(PYTHON, "vLLM", "scripts/vllm_env.sh")
    need_own_network()
    master = Path(sys.executable).with_name("mooncake_master")
    told = inside("tests.fleet.vllm_mooncake_inside", str(tmp_path), str(PYTHON), str(master))
    said = json.loads(told.splitlines()[-1])
    theirs, mine = said["theirs"]["semblend"], said["mine"]["semblend"]
    assert theirs["outcome"] == "materialised", said
    assert theirs["donor_ids"][0].startswith("fleet.")
    assert theirs["reused_tokens"] == mine["reused_tokens"] > 600
    assert said["theirs"]["tokens"] == said["mine"]["tokens"]
    assert said["theirs"]["fetched"] == 1
