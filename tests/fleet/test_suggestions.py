"""Vectors suggest living donors of the same namespace, and never count a token as shared."""

from dataclasses import replace

import numpy as np

from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.directory.suggestions import Suggestions
from semblend.fleet.events.model import DonorEvicted, GenerationReset
from semblend.fleet.keys import donor_key
from semblend.fleet.publish.bus import InProcessBus
from semblend.fleet.sketch import sketch
from tests.fleet.support import (
    KEYS,
    NAMESPACE,
    OTHER_KEYS,
    SECRET,
    Shelf,
    event,
    prompt,
    registered,
)


def made():
    held = Directory(SketchIndex(max_donors=64, max_postings=9000), lease_s=None)
    return held, Suggestions(held, dimension=3)


def meaning(donor_id, vector, seed, keys=KEYS):
    return replace(registered(donor_id, prompt(seed, 600), keys=keys), embedding=vector)


def test_the_nearest_living_donors_are_suggested_and_no_token_is_claimed():
    held, suggestions = made()
    suggestions.apply(
        [
            event(1, GenerationReset(generation=1)),
            event(2, meaning("near", (1.0, 0.1, 0.0), 1)),
            event(3, meaning("far", (0.0, 1.0, 0.0), 2)),
            event(4, meaning("foreign", (1.0, 0.0, 0.0), 3, OTHER_KEYS)),
        ]
    )
    found = suggestions.suggest((1.0, 0.0, 0.0), KEYS.namespace_id)
    assert found[0].donor_key == donor_key("w", 0, "near")
    assert donor_key("w", 0, "foreign") not in [item.donor_key for item in found]
    assert not held.lookup(sketch(prompt(9, 600), KEYS), KEYS.namespace_id).holdings


def test_the_dead_are_not_suggested():
    held, suggestions = made()
    suggestions.apply(
        [event(1, GenerationReset(generation=1)), event(2, meaning("d", (1.0, 0.0, 0.0), 1))]
    )
    assert suggestions.suggest((1.0, 0.0, 0.0), KEYS.namespace_id)
    suggestions.apply([event(3, DonorEvicted(donor_id="d", generation=1))])
    assert not suggestions.suggest((1.0, 0.0, 0.0), KEYS.namespace_id)
    suggestions.apply([event(4, meaning("e", (1.0, 0.0, 0.0), 2))])
    held.doubt(("w", 0))  # nobody says so in an event
    assert not suggestions.suggest((1.0, 0.0, 0.0), KEYS.namespace_id)


def test_vectors_leave_a_worker_only_if_it_was_told_to():
    bus, shelf = InProcessBus(), Shelf()
    shelf.keep("d", prompt(1, 600))
    silent = DonorAnnouncer(shelf, bus.sink("silent"), worker_id="silent", secret=SECRET)
    told = DonorAnnouncer(
        shelf,
        bus.sink("told"),
        worker_id="told",
        secret=SECRET,
        namespace=NAMESPACE,
        embed=lambda tokens: np.array([1.0, 0.0, float(len(tokens) > 0)]),
    )
    for announcer in (silent, told):
        assert announcer.publisher.wait()
    logs = {name[0]: log[-1].data.embedding for name, log in bus._logs.items()}
    assert logs == {"silent": (), "told": (1.0, 0.0, 1.0)}
    for announcer in (silent, told):
        announcer.publisher.abandon()
