"""Inside a private network: NATS, Dynamo's frontend, KV router and two mockers, our gateway.

Dynamo's components listen on all addresses, so they are given a network with nobody else in
it. The mockers stand for workers that run SemBlend: their donors are announced here under
their instance ids. Prints one JSON object of what was seen.
    unshare -n python -m tests.fleet.dynamo_inside FOLDER MODEL
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from transformers import AutoTokenizer

from semblend.core.namespace import Namespace
from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.directory.log_follower import LogFollower
from semblend.fleet.publish.jetstream import JetStreamSink
from semblend.fleet.publish.nats_link import LogOptions
from semblend.integration.dynamo.pinning import PIN_HEADER
from semblend.serve.gateway.app import create_gateway
from semblend.serve.gateway.options import GatewayOptions
from tests.fleet.conftest import NatsServer
from tests.fleet.engines import FAST, SLOW_PREFILL, on_a_port, settings
from tests.fleet.support import Shelf, until

FRONTEND = "http://127.0.0.1:8123"
MODEL_NAME = "m"


def main() -> None:
    folder, model = Path(sys.argv[1]), sys.argv[2]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with ExitStack() as ending:
        client = ending.enter_context(httpx.Client(trust_env=False, timeout=60))
        mockers = dynamo(folder, model, ending)
        instances = until(lambda: backends(client), "two mockers to register", 120)
        seen = explore(client, folder, model, instances, mockers, ending)
    print(json.dumps(seen))


def dynamo(folder: Path, model: str, ending: ExitStack) -> list[subprocess.Popen[bytes]]:
    env = {
        **os.environ,
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "discovery"),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
    }
    mocker = [
        *("-m", "dynamo.mocker", "--model-path", model, "--model-name", MODEL_NAME),
        *("--block-size", "16", "--speedup-ratio", "20"),
    ]
    frontend = [
        *("-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", "8123"),
        *("--router-mode", "kv", "--kv-cache-block-size", "16"),
    ]
    processes = []
    for number, command in enumerate((mocker, mocker, frontend)):
        log = ending.enter_context((folder / f"dynamo{number}.log").open("wb"))
        process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, env=env)
        ending.callback(process.wait)
        ending.callback(process.kill)
        processes.append(process)
    return processes[:2]


def backends(client: httpx.Client) -> list[int] | None:
    try:
        found = generating(client)
        ready = client.get(f"{FRONTEND}/v1/models").json()["data"]
    except (httpx.HTTPError, ValueError, KeyError):
        return None
    return found if len(found) == 2 and ready else None


def generating(client: httpx.Client) -> list[int]:
    """Instances that Dynamo's frontend knows to generate."""
    instances = client.get(f"{FRONTEND}/health").json().get("instances", [])
    return sorted(i["instance_id"] for i in instances if i["endpoint"] == "generate")


def explore(
    client: httpx.Client,
    folder: Path,
    model: str,
    instances: list[int],
    mockers: list[subprocess.Popen[bytes]],
    ending: ExitStack,
) -> dict[str, Any]:
    server = NatsServer(folder / "jetstream")
    ending.callback(server.stop)
    log = LogOptions(url=server.url)
    shared = settings(nats_url=server.url)
    namespace = Namespace.of(
        model=MODEL_NAME, tenant=shared.donor_tenant, template=shared.donor_template
    )
    shelves = {instance: Shelf() for instance in instances}
    for instance, shelf in shelves.items():
        announcer = DonorAnnouncer(
            shelf,
            JetStreamSink(log, worker_id=str(instance)),
            worker_id=str(instance),
            secret=shared.namespace_secret.encode(),
            namespace=namespace,
            sampling=shared.fleet_sampling,
            options=FAST,
        )
        ending.callback(announcer.publisher.abandon)
    held = Directory(SketchIndex(max_donors=1024, max_postings=100_000), lease_s=30.0)
    ending.callback(LogFollower(held, log, idle_s=0.1).close)
    app = create_gateway(
        held,
        AutoTokenizer.from_pretrained(model),
        GatewayOptions(
            workers=tuple((str(instance), FRONTEND) for instance in instances),
            pin_header=PIN_HEADER,
            cost=SLOW_PREFILL,
            # A busy machine is no sick worker.
            health_timeout_s=60.0,
        ),
        shared,
    )
    url = ending.enter_context(on_a_port(app))
    random = np.random.default_rng(5)
    documents = {instance: random.integers(300, 4000, 800) for instance in instances}
    for instance, document in documents.items():
        donor = np.concatenate((random.integers(300, 4000, 30), document)).astype(np.int32)
        shelves[instance].keep(f"donor-{instance}", donor, namespace)
    until(lambda: held.stats().donors == 2 and len(held.donor_keys()) == 2, "the donors")

    def ask(base: str, tokens: Any, *, headers: dict[str, str] | None = None, **body: Any) -> Any:
        extra = {"nvext": {"extra_fields": ["worker_id"]}, **body}
        return client.post(
            f"{base}/v1/completions",
            json={"model": MODEL_NAME, "prompt": tokens.tolist(), "max_tokens": 1, **extra},
            headers=headers or {},
        )

    def worker(reply: Any) -> int:
        return int(reply.json()["nvext"]["worker_id"]["prefill_worker_id"])

    placed = []
    for _ in range(3):
        for instance, document in documents.items():
            lead = random.integers(300, 4000, 48)
            reply = ask(url, np.concatenate((lead, document, random.integers(300, 4000, 20))))
            placed.append(
                {
                    "owner": instance,
                    "status": reply.status_code,
                    "worker": worker(reply),
                    "route": reply.headers["x-semantic-route"],
                }
            )
    unknown = ask(url, random.integers(300, 4000, 400))
    by_header = [
        worker(ask(FRONTEND, random.integers(300, 4000, 64), headers={PIN_HEADER: str(instance)}))
        for instance in instances
    ]
    for instance, shelf in shelves.items():
        shelf.lose(f"donor-{instance}")
    until(lambda: held.stats().donors == 0, "the evictions")
    after = ask(url, np.concatenate((random.integers(300, 4000, 40), documents[instances[0]])))
    # A worker dies. Dynamo notices in its own time; the donors are still believed in.
    for instance, shelf in shelves.items():
        shelf.keep(f"again-{instance}", documents[instance].astype(np.int32), namespace)
    until(lambda: held.stats().donors == 2, "the donors again")
    mockers[0].kill()
    mockers[0].wait()
    until(lambda: len(generating(client)) == 1, "Dynamo to miss the mocker", 180)
    orphaned = []
    for document in documents.values():
        reply = ask(url, np.concatenate((random.integers(300, 4000, 52), document)))
        retries = reply.headers.get("x-semblend-retries")
        orphaned.append({"status": reply.status_code, "retries": retries})
    return {
        "instances": instances,
        "placed": placed,
        "unknown": {"status": unknown.status_code, "route": unknown.headers["x-semantic-route"]},
        "by_header": by_header,
        "orphaned": orphaned,
        "after_eviction": {
            "status": after.status_code,
            "route": after.headers["x-semantic-route"],
        },
    }


if __name__ == "__main__":
    main()
