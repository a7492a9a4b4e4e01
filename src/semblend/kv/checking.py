"""Checksums of leased K/V, computed on threads beside the copies that read it.

A gigabyte takes a core a fifth of a second, and the host has little else to do while
the same bytes travel. What the checks say is waited for before anything that rests on the
K/V leaves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait

from semblend.kv.layerwise import Check

CHECKERS = min(12, max(2, 3 * (os.cpu_count() or 2) // 4))
"""Threads that compute checksums. One does some five gigabytes a second, the bus that the same
bytes travel on fifty: as many as there are cores to spare."""

_CHECKERS = ThreadPoolExecutor(max_workers=CHECKERS, thread_name_prefix="semblend-checks")


class Checking:
    def __init__(self, checks: Iterable[Check]) -> None:
        self._checks = [_CHECKERS.submit(check) for check in checks]

    @property
    def done(self) -> bool:
        """Whether it is known what they say."""
        return all(check.done() for check in self._checks)

    def wait(self) -> None:
        """Wait until it is."""
        wait(self._checks)

    def is_sound(self) -> bool:
        """Whether everything has its checksum; waits until that is known.

        Raises
        ------
        Exception
            Whatever a check raised: nothing is known then.
        """
        wait(self._checks)
        return all(check.result() for check in self._checks)
