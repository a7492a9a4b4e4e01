"""Nothing that leaves a worker tells what its prompts say, and nothing crosses namespaces."""

import hashlib

import numpy as np
import pytest

from semblend.core.errors import NamespaceError, SettingsError
from semblend.fleet.keys import FleetKeys, fleet_secret, tenant_key
from semblend.fleet.siphash import siphash
from semblend.fleet.sketch import MARK_TOKENS, sketch
from tests.fleet.support import KEYS, NAMESPACE, OTHER_KEYS, SECRET, prompt


def test_siphash_is_the_published_function():
    """First vectors of the reference implementation: key 00..0f, message 00..07."""
    word = np.array([int.from_bytes(bytes(range(8)), "little")], dtype=np.uint64)
    (value,) = siphash(word, bytes(range(16)))
    assert int(value).to_bytes(8, "little").hex() == "6224939a79f5f593"


def test_siphash_wants_its_whole_key():
    with pytest.raises(NamespaceError, match="16 bytes"):
        siphash(np.zeros(1, dtype=np.uint64), b"short")


def test_sketches_of_other_tenants_and_secrets_share_nothing():
    tokens = prompt(1, 8192)
    mine = sketch(tokens, KEYS, sampling=1)
    stranger = FleetKeys.of(NAMESPACE, b"another secret")
    for keys in (OTHER_KEYS, stranger):
        theirs = sketch(tokens, keys, sampling=1)
        assert not np.intersect1d(mine.hashes, theirs.hashes).size
        assert not np.intersect1d(mine.marks, theirs.marks).size
        assert keys.namespace_id != KEYS.namespace_id


def test_what_is_published_reveals_neither_keys_nor_tenant():
    assert SECRET.decode() not in repr(KEYS)
    assert KEYS.gram_key.hex() not in repr(KEYS)
    assert KEYS.namespace_id not in (NAMESPACE.key().hex(), NAMESPACE.key(SECRET).hex())
    plain = hashlib.sha256(b"tenant-a").hexdigest()[:32]
    assert plain not in tenant_key("tenant-a", SECRET)
    assert tenant_key("tenant-a", SECRET) != tenant_key("tenant-a", b"other")


@pytest.mark.parametrize("secret", ["", "short"])
def test_a_fleet_without_a_secret_is_refused(secret):
    with pytest.raises(SettingsError, match="SEMBLEND_NAMESPACE_SECRET"):
        fleet_secret(secret)


def test_shared_content_is_seen_wherever_it_stands():
    """The law: of a run both prompts hold, every sampled fingerprint well inside is shared."""
    document = prompt(2, 2048)
    one = np.concatenate((prompt(3, 100), document, prompt(4, 50)))
    two = np.concatenate((prompt(5, 777), document))
    for sampling in (1, 4, 16):
        first, second = (sketch(p, KEYS, sampling=sampling) for p in (one, two))
        inside = (first.positions >= 100 + 32) & (first.positions < 100 + 2048 - 48)
        assert inside.any()
        assert np.isin(first.hashes[inside], second.hashes).all()


def test_coarser_samples_are_part_of_finer_ones():
    tokens = prompt(6, 4096)
    fine, coarse = (sketch(tokens, KEYS, sampling=s) for s in (2, 16))
    assert np.isin(coarse.hashes, fine.hashes).all()
    assert 0 < coarse.hashes.size < fine.hashes.size


def test_weights_add_up_to_the_prompt():
    drawn = sketch(prompt(7, 5000), KEYS)
    assert drawn.weights.sum() == 5000
    assert (drawn.weights > 0).all()


def test_marks_are_shared_exactly_as_far_as_prefixes_are():
    tokens = prompt(8, 4 * MARK_TOKENS + 100)
    changed = tokens.copy()
    changed[2 * MARK_TOKENS + 5] += 1
    one, two = sketch(tokens, KEYS), sketch(changed, KEYS)
    assert one.marks.size == 4
    assert (one.marks == two.marks).tolist() == [True, True, False, False]


@pytest.mark.parametrize("sampling", [0, 3, 8192])
def test_sampling_is_a_power_of_two(sampling):
    with pytest.raises(SettingsError, match="power of two"):
        sketch(prompt(9, 100), KEYS, sampling=sampling)
