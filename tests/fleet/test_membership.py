"""A pipeline's donors, whichever engine owns it, are announced exactly as its store holds them."""

from semblend.core.namespace import Namespace
from semblend.core.settings import EmbedderKind, Settings
from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.keys import FleetKeys, donor_key
from semblend.fleet.membership import PipelineLibrary, join, worker_name
from semblend.fleet.publish.bus import InProcessBus
from semblend.fleet.publish.publisher import PublisherOptions
from semblend.fleet.sketch import sketch
from semblend.pipeline import SemBlendPipeline
from tests.fleet.support import prompt, until

SECRET = "the secret of this fleet"
SETTINGS = Settings(
    embedder=EmbedderKind.NONE, namespace_secret=SECRET, max_donor_bytes=200_000, worker_id="w"
)
NAMESPACE = Namespace.of(model="m")


def test_registrations_evictions_and_lack_of_room_are_all_followed():
    bus, held = InProcessBus(), Directory(SketchIndex(max_donors=512, max_postings=50_000))
    bus.attach(held)
    with SemBlendPipeline(SETTINGS) as pipeline:
        pipeline.register_donor("before", prompt(0, 500), NAMESPACE)
        library = PipelineLibrary(pipeline)
        announcer = DonorAnnouncer(
            library,
            bus.sink("w"),
            worker_id="w",
            secret=SECRET.encode(),
            namespace=NAMESPACE,
            sampling=2,
            options=PublisherOptions(heartbeat_s=0.02),
        )
        ids = ["before", *(f"d{number}" for number in range(1, 60))]
        for number, donor_id in enumerate(ids[1:], start=1):
            pipeline.register_donor(donor_id, prompt(number, 900), NAMESPACE)
            if number % 7 == 0:
                pipeline.evict(donor_id)
        real = {donor_id for donor_id in ids if pipeline.holds(donor_id)}
        assert 0 < len(real) < len(ids) - 8, "some had to make room"
        assert {held_id for held_id, _, _ in library.inventory()} == real
        truth = {("w", 0): frozenset(donor_key("w", 0, donor_id) for donor_id in real)}
        until(lambda: held.donor_keys() == truth, "the directory")
        # The pipeline's own key stands for the namespace: gateways derive the same.
        keys = FleetKeys.of(NAMESPACE, SECRET.encode())
        some = max(real, key=lambda donor_id: int(donor_id[1:] or 0))
        found = held.lookup(sketch(prompt(int(some[1:]), 900), keys, sampling=2), keys.namespace_id)
        assert found.holdings[0].donor_key == donor_key("w", 0, some)
        pipeline.clear()
        until(lambda: held.donor_keys() == {("w", 0): frozenset()}, "the end")
        announcer.publisher.abandon()


def test_without_an_address_nobody_joins():
    with SemBlendPipeline(SETTINGS) as pipeline:
        assert join(pipeline, SETTINGS, NAMESPACE) is None


def test_a_worker_without_a_name_is_called_after_its_host_and_process():
    assert worker_name(SETTINGS) == "w"
    assert "-" in worker_name(Settings())
