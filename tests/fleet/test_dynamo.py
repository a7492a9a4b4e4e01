"""Beside real Dynamo: its selection is asked, its workers are pinned, and it is left alone."""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.events.model import GenerationReset
from semblend.fleet.placement.chooser import Choice
from semblend.fleet.placement.cost import FleetCost
from semblend.integration.dynamo.pinning import PIN_HEADER, pin_body, pin_headers
from semblend.integration.dynamo.selection import SelectionView
from semblend.serve.gateway.dynamo import DynamoProvider
from tests.fleet.support import (
    NAMESPACE,
    SECRET,
    event,
    need,
    need_own_network,
    prompt,
    registered,
    slow,
)

ROOT = Path(__file__).resolve().parents[2]
COST = FleetCost(seconds_per_token=1e-3)
ONE, TWO = 11, 22


def has_dynamo():
    return importlib.util.find_spec("dynamo") is not None


def test_a_pin_keeps_what_the_caller_asked_for():
    body = {"model": "m", "nvext": {"extra_fields": ["timing"]}}
    assert pin_body(body, "7")["nvext"] == {"extra_fields": ["timing"], "backend_instance_id": 7}
    assert "backend_instance_id" not in body["nvext"]
    assert pin_headers(7) == {PIN_HEADER: "7"}


class Selection:
    """A real SelectionService with two workers whose cache events we send."""

    def __init__(self, folder):
        import zmq
        from dynamo._core import SelectionService

        self._context = zmq.Context()
        self.service = SelectionService(indexer_threads=1)
        self._sockets = {}
        self._sent = dict.fromkeys((ONE, TWO), 0)
        self._folder = folder

    async def start(self):
        import zmq

        for worker in (ONE, TWO):
            address = f"ipc://{self._folder}/events{worker}"
            self._sockets[worker] = self._context.socket(zmq.PUB)
            self._sockets[worker].bind(address)
            await self.service.upsert_worker(
                {
                    "worker_id": worker,
                    "model_name": "m",
                    "block_size": 16,
                    "endpoint": "http://worker",
                    "data_parallel_size": 1,
                    "kv_events_endpoints": {0: address},
                }
            )

    async def stored(self, worker, tokens):
        """The worker caches a prefix; sent until Dynamo's index has it."""
        import msgpack

        made = {
            "type": "BlockStored",
            "block_hashes": list(range(worker * 1000, worker * 1000 + len(tokens) // 16)),
            "parent_block_hash": None,
            "token_ids": list(tokens),
            "block_size": 16,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
        for _ in range(600):
            number = self._sent[worker].to_bytes(8, "big")
            self._sent[worker] += 1
            self._sockets[worker].send_multipart([b"", number, msgpack.packb([0.0, [made], 0])])
            await asyncio.sleep(0.05)
            scores = await self.service.overlap_scores(
                {"model_name": "m", "token_ids": list(tokens)}
            )
            if any(w["worker_id"] == worker and w["device_blocks"] for w in scores["workers"]):
                return
        raise AssertionError("Dynamo did not take the cache event")

    def close(self):
        self.service.shutdown()
        for socket in self._sockets.values():
            socket.close(linger=0)
        self._context.destroy(linger=0)


def test_the_selection_service_is_beaten_only_where_a_donor_pays(tmp_path):
    need(has_dynamo(), "ai-dynamo")
    asyncio.run(_selection(tmp_path))


async def _selection(folder):
    selection = Selection(folder)
    await selection.start()
    view = SelectionView(selection.service, model_name="m")
    held = Directory(SketchIndex(max_donors=64, max_postings=9000), lease_s=None)
    provider = DynamoProvider(view, held, secret=SECRET, cost=COST, sampling=4)
    document = prompt(1, 1600)
    target = np.concatenate((prompt(2, 64), document, prompt(3, 30)))
    try:
        alone = await provider.decide("r0", target, NAMESPACE)
        assert alone.placement.choice is Choice.ROUTER
        assert alone.headers == {}

        for worker in (ONE, TWO):
            start = event(1, GenerationReset(generation=1), str(worker))
            held.apply([start])
        donor = np.concatenate((prompt(4, 100), document))
        held.apply([event(2, registered("d", donor), str(TWO))])
        pinned = await provider.decide("r1", target, NAMESPACE)
        assert pinned.placement.choice is Choice.DONOR
        assert pinned.headers == {PIN_HEADER: str(TWO)}
        loads = {w["worker_id"]: w for w in selection.service.loads()[0]["loads"]}
        booked = loads[TWO]["potential_prefill_tokens"]
        assert 0 < booked < len(target) // 2, "only what is really left to compute is booked"
        assert loads[ONE]["potential_prefill_tokens"] == 0
        await view.prefilled("r1")
        await view.finished("r1")

        # Dynamo knows an exact prefix at the other worker that is worth more than the donor.
        await selection.stored(ONE, target[:1680].tolist())
        left = await provider.decide("r2", target, NAMESPACE)
        assert left.router.instance_id == ONE
        assert left.headers == {}

        # A queue at the donor's owner makes the router's choice better.
        other = np.concatenate((prompt(9, 64), document))
        busy = prompt(10, 4000)
        await view.book("busy", busy.tolist(), instance_id=TWO, effective_prefill_tokens=4000)
        waits = await provider.decide("r3", other, NAMESPACE)
        assert waits.placement.choice is Choice.ROUTER
        await view.finished("busy")
        back = await provider.decide("r4", other, NAMESPACE)
        assert back.headers == {PIN_HEADER: str(TWO)}
    finally:
        selection.close()


@slow
def test_placement_through_dynamos_frontend_reaches_the_donors_worker(tmp_path):
    need(has_dynamo(), "ai-dynamo")
    need(shutil.which("nats-server"), "nats-server")
    need_own_network()
    model = ROOT / "models" / "semblend-reference-27m"
    inside = [sys.executable, "-m", "tests.fleet.dynamo_inside", str(tmp_path), str(model)]
    result = subprocess.run(
        ["unshare", "-n", *inside],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    seen = json.loads(result.stdout.splitlines()[-1])
    assert len(seen["instances"]) == 2
    for placed in seen["placed"]:
        assert placed["status"] == 200
        assert placed["route"] == "semantic_placement"
        assert placed["worker"] == placed["owner"]
    assert seen["by_header"] == seen["by_body"] == seen["instances"]
    assert seen["unknown"] == {"status": 200, "route": "router"}
    assert [reply["status"] for reply in seen["orphaned"]] == [200, 200]
    assert sorted(reply["retries"] for reply in seen["orphaned"]) == ["0", "1"]
    assert seen["after_eviction"] == {"status": 200, "route": "router"}
