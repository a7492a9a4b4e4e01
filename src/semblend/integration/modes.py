"""What the modes of all adapters have in common: one word means the same in every engine."""

from __future__ import annotations

from enum import StrEnum


class ReuseMode(StrEnum):
    """What an adapter may supply to its engine; each engine names the modes it has.

    Their values are among discovery_only, exact_prefix, request_only_experimental,
    segmented_experimental and segmented.
    """

    @property
    def loads(self) -> bool:
        """Whether donor K/V is loaded at all."""
        return self.value != "discovery_only"

    @property
    def segmented(self) -> bool:
        """Whether holes may stand between what is loaded."""
        return self.value in ("segmented", "segmented_experimental")

    @property
    def standing(self) -> str:
        """What stands behind its loads: exact, certified or experimental."""
        if self.uncertified:
            return "experimental"
        return "exact" if self.value == "exact_prefix" else "certified"

    @property
    def uncertified(self) -> bool:
        """Whether approximate K/V may be loaded without a certificate."""
        return self.value.endswith("_experimental")
