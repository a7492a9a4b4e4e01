"""Checksums of leased K/V, computed on threads in parallel with the copies that read it.

A gigabyte takes a core a fifth of a second, and the host has little else to do while the same bytes
are transferred. Nothing based on the K/V is released before the checks are done.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait

from semblend.kv.layerwise import Check

CHECKERS = min(12, max(2, 3 * (os.cpu_count() or 2) // 4))
"""Threads for checksums. One does about five gigabytes a second, the bus fifty, so use as many as
there are spare cores.
"""

_CHECKERS = ThreadPoolExecutor(max_workers=CHECKERS, thread_name_prefix="semblend-checks")


class Checking:
    def __init__(self, checks: Iterable[Check]) -> None:
        self._checks = [_CHECKERS.submit(check) for check in checks]

    @property
    def done(self) -> bool:
        """Whether all results are known."""
        return all(check.done() for check in self._checks)

    def wait(self) -> None:
        """Wait for all results."""
        wait(self._checks)

    def is_sound(self) -> bool:
        """Wait for the checks. Returns whether everything has its checksum.

        Raises
        ------
        Exception
            Whatever a check raised, in which case nothing is known.
        """
        wait(self._checks)
        return all(check.result() for check in self._checks)
