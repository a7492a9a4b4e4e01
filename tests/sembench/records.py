"""Records and items for tests: generated ones, and odd ones."""

from hypothesis import strategies as st

from sembench.profiles import SourceRecord
from sembench.profiles.synthetic import synthetic_record
from sembench.profiles.synthetic_words import TRADES


def record(index=0, *, dataset="synthetic_harbour", seed=7):
    return synthetic_record(dataset, index, seed=seed)


def companions():
    return [record(index, dataset=name) for name in TRADES for index in range(3)]


any_record = st.builds(
    synthetic_record,
    st.sampled_from(sorted(TRADES)),
    st.integers(0, 1000),
    seed=st.integers(0, 1000),
)


class ListSource:
    """A source of given records that counts how many were handed out."""

    profile = "list"

    def __init__(self, records: list[SourceRecord]):
        self._records = records
        self.handed_out = 0

    def records(self):
        for one in self._records:
            self.handed_out += 1
            yield one
