"""A real vLLM worker in a fleet: its donors are announced, found, placed to and reused there."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import numpy as np

from semblend.core.namespace import Namespace
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.follower import LogFollower
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.keys import FleetKeys
from semblend.fleet.placement.chooser import Choice, WorkerLoad, choose
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.sketch import sketch
from semblend.integration.vllm.namespaces import isolation_of
from tests.fleet.engines import MODEL, SLOW_PREFILL
from tests.fleet.support import need_vllm, slow, until

pytestmark = slow

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
SECRET = "the secret of this fleet"


def test_a_vllm_worker_announces_its_donors_and_reuses_them_when_placed_to(nats_server, tmp_path):
    need_vllm(PYTHON)
    # vLLM's environment lacks the log's client, which is pure Python: lend it ours.
    client = Path(importlib.util.find_spec("nats").origin).parent
    (tmp_path / "lent").mkdir()
    (tmp_path / "lent" / "nats").symlink_to(client)
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{tmp_path / 'lent'}",
        "SEMBLEND_NATS_URL": nats_server.url,
        "SEMBLEND_NAMESPACE_SECRET": SECRET,
        "SEMBLEND_WORKER_ID": "vllm-a",
        "SEMBLEND_FLEET_SAMPLING": "2",
        "SEMBLEND_EMBEDDER": "none",
        "SEMBLEND_ALLOW_UNCERTIFIED": "1",
    }
    held = Directory(SketchIndex(max_donors=64, max_postings=9000), lease_s=60.0)
    follower = LogFollower(held, LogOptions(url=nats_server.url), idle_s=0.1)
    log = (tmp_path / "vllm.log").open("w")
    worker = subprocess.Popen(
        [str(PYTHON), "-m", "tests.fleet.vllm_worker", str(MODEL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=env,
        cwd=ROOT,
    )
    try:

        def heard():
            for line in worker.stdout:
                if line.startswith("@"):
                    return json.loads(line[1:])
            raise AssertionError((tmp_path / "vllm.log").read_text()[-3000:])

        def ask(tokens):
            worker.stdin.write(json.dumps(tokens) + "\n")
            worker.stdin.flush()
            return heard()

        assert heard() == {"ready": True}
        random = np.random.default_rng(1)
        document = random.integers(300, 4000, 700)
        first = ask([*document.tolist(), 5, 6])
        assert first["cached"] == 0
        until(lambda: held.donor_keys().get(("vllm-a", 0)), "the donor to be announced")

        (parts,) = held.namespace_kinds()
        namespace = Namespace(
            **parts, tenant="none", template="none", cache_salt=isolation_of(None)
        )
        target = np.concatenate((random.integers(300, 4000, 64), document, [7, 8])).astype(np.int32)
        keys = FleetKeys.of(namespace, SECRET.encode())
        found = held.lookup(sketch(target, keys, sampling=2), keys.namespace_id)
        loads = [WorkerLoad(worker_id="elsewhere"), WorkerLoad(worker_id="vllm-a")]
        placed = choose(len(target), found, loads, SLOW_PREFILL)
        assert placed.choice is Choice.DONOR
        assert placed.option.worker_id == "vllm-a"

        reused = ask(target.tolist())
        assert reused["semblend"]["outcome"] == "materialised", reused
        assert reused["cached"] > 500
    finally:
        worker.stdin.close()
        worker.stdout.close()
        worker.kill()
        worker.wait()
        log.close()
        follower.close()
