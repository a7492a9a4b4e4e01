"""Real vLLM workers in a fleet: donors are announced, found, placed to, and moved between them."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.follower import LogFollower
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.placement.chooser import Choice, WorkerLoad, choose
from semblend.fleet.publish.nats_link import LogOptions
from semblend.integration.isolation import by_salt
from tests.fleet.engines import MODEL, SLOW_PREFILL
from tests.fleet.line_workers import ROOT, found_by_a_gateway, line_worker
from tests.fleet.support import need_environment, slow, until

pytestmark = slow

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
COLD = {"hints": {"reuse": False, "capture": False}}


def text(seed, size):
    return np.random.default_rng(seed).integers(300, 4000, size).astype(np.int32)


def prompt(*parts):
    return np.concatenate(parts).astype(np.int32)


@contextmanager
def vllm(name, nats_server, folder, **settings):
    """A real vLLM, which is spoken to by lines."""
    need_environment(PYTHON, "vLLM", "scripts/vllm_env.sh")
    with line_worker(
        PYTHON,
        "tests.fleet.vllm_worker",
        str(MODEL),
        worker_id=name,
        nats_url=nats_server.url,
        folder=folder,
        **settings,
    ) as worker:

        def ask(tokens, **more):
            return worker.ask({"tokens": tokens.tolist(), **more})

        yield SimpleNamespace(ask=ask, leave=worker.leave)


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


def test_a_vllm_worker_announces_its_donors_and_reuses_them_when_placed_to(
    nats_server, held, tmp_path
):
    with vllm("vllm-a", nats_server, tmp_path) as worker:
        document = text(1, 700)
        assert worker.ask(prompt(document, [5, 6]))["cached"] == 0
        until(lambda: held.donor_keys().get(("vllm-a", 0)), "the donor to be announced")

        target = prompt(text(2, 64), document, [7, 8])
        loads = [WorkerLoad(worker_id="elsewhere"), WorkerLoad(worker_id="vllm-a")]
        placed = choose(len(target), found(held, target), loads, SLOW_PREFILL)
        assert placed.choice is Choice.DONOR
        assert placed.option.worker_id == "vllm-a"
        assert found(held, target).shared is None, "no store was named"

        reused = worker.ask(target)
        assert reused["semblend"]["outcome"] == "materialised", reused
        assert reused["cached"] > 500


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
