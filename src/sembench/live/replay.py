"""Plays one manifest item: empty the caches, serve the donors, serve the recipient.

Pairs are played cold first: empty the caches, send the recipient alone; empty them again,
serve the donors, send the recipient. The cold arm is the baseline and also proves that
emptying worked: a cold request that reports cached tokens is contaminated, and its pair
does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sembench.errors import EndpointError, UsageError
from sembench.live.engine_counters import Counts, EngineCounters
from sembench.live.identity import RequestName
from sembench.live.prompt import EngineClient, Prompt
from sembench.live.reply import Reply
from sembench.live.reply_rows import RowMaker
from sembench.model import ManifestItem
from sembench.results import RequestRow

Reset = Callable[[], Awaitable[None]]


class Arm(StrEnum):
    """Which half of a comparison a request belongs to."""

    COLD = "cold"
    WARM = "warm"
    SINGLE = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    run_id: str
    arm: Arm = Arm.SINGLE
    paired: bool = False
    donor_max_tokens: int = 1
    recipient_max_tokens: int = 16
    post_donor_delay_ms: float = 0.0
    """Extra pause between donors and recipient, after waiting for registered donors."""
    donor_wait_ms: float = 5000.0
    """How long to wait for the engine's counters to show the donors as registered."""
    cooldown_ms: float = 0.0
    top_logprobs: int = 0
    isolate_by_salt: bool = False
    """Give every item and arm its own cache salt instead of emptying the caches."""
    contamination_check: bool = False
    """Send the recipient once more afterwards to see what the exact cache holds then."""

    def __post_init__(self) -> None:
        for name in ("donor_max_tokens", "recipient_max_tokens"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag}: expected at least 1, got {getattr(self, name)}")
        if self.paired and self.arm is not Arm.SINGLE:
            raise UsageError("--paired plays both arms itself; drop --arm")


class Replayer:
    """Plays items against one endpoint; donors may go to other workers."""

    def __init__(
        self,
        *,
        recipient: EngineClient,
        donors: Sequence[EngineClient],
        rows: RowMaker,
        options: ReplayOptions,
        reset: Reset | None = None,
        counters: EngineCounters | None = None,
        alone: bool = True,
    ) -> None:
        """Make a replayer.

        Parameters
        ----------
        counters
            The engine's counters, if it has any. They show when donors are registered. With
            `alone` (one request at a time) their increase also confirms a request.
        """
        self._recipient = recipient
        self._donors = donors or (recipient,)
        self._rows = rows
        self._options = options
        self._reset = reset
        self._counters = counters
        self._alone = alone

    async def play(self, item: ManifestItem, position: int) -> RequestRow:
        """Play everything of one item, in order."""
        options = self._options
        if options.paired:
            cold = await self._cold(item, position)
            warm_donors = await self.serve_donors(item, position, Arm.WARM)
            return await self.serve_recipient(item, position, Arm.WARM, warm_donors, cold=cold)
        if options.arm is Arm.COLD:
            reply = await self._cold(item, position)
            await self._cool_down()
            return self._rows.row(
                item, arm=Arm.COLD, reply=reply, flush_contaminated=self._contaminated(reply)
            )
        donors = await self.serve_donors(item, position, options.arm)
        return await self.serve_recipient(item, position, options.arm, donors)

    async def serve_donors(self, item: ManifestItem, position: int, arm: Arm) -> list[Reply]:
        """Empty the caches and serve the item's donors, each on the next worker in turn."""
        await self._empty()
        before = await self._counted()
        replies = [
            await self._donors[index % len(self._donors)].complete(
                Prompt(
                    request_id=self._name(item, position, arm, f"donor{index}"),
                    text=donor.text,
                    max_tokens=self._options.donor_max_tokens,
                    cache_salt=self._salt(item, arm),
                )
            )
            for index, donor in enumerate(item.donor_prompts)
        ]
        answered = sum(reply.ok for reply in replies)
        if self._counters is not None and before is not None and answered:
            await self._counters.wait_for_donors(
                before, answered, self._options.donor_wait_ms / 1000.0
            )
        await _sleep_ms(self._options.post_donor_delay_ms)
        return replies

    async def serve_recipient(
        self,
        item: ManifestItem,
        position: int,
        arm: Arm,
        donors: Sequence[Reply],
        *,
        cold: Reply | None = None,
        donor_gap_requests: int | None = None,
    ) -> RequestRow:
        """Serve the recipient after its donors, and again if the run checks for contamination."""
        reply = await self._ask(item, position, arm, "recipient")
        repeat = None
        if self._options.contamination_check and reply.ok:
            repeat = await self._ask(item, position, arm, "repeat")
        await self._cool_down()
        gap = {} if donor_gap_requests is None else {"donor_gap_requests": donor_gap_requests}
        return self._rows.row(
            item,
            arm=arm,
            reply=reply,
            cold=cold,
            repeat=repeat,
            donors=donors,
            flush_contaminated=None if cold is None else self._contaminated(cold),
            extra=gap,
        )

    async def warm_up(self, count: int, *, words: int = 0) -> None:
        """Send `count` unmeasured requests to warm connections, kernels and pages.

        They are as long as the first prompt (`words`) and use its parameters, because engines
        compile per shape. Their text is numbers that no donor or recipient contains.

        Raises
        ------
        EndpointError
            If none is answered: the run would measure nothing.
        """
        replies = [
            await self._recipient.complete(
                Prompt(
                    request_id=str(
                        RequestName(
                            run_id=self._options.run_id,
                            arm=self._options.arm,
                            item_id="warmup",
                            role="warmup",
                            position=number,
                        )
                    ),
                    text=_numbers(number, words),
                    max_tokens=min(2, self._options.recipient_max_tokens),
                    cache_salt="sembench-warmup" if self._options.isolate_by_salt else "",
                    top_logprobs=self._options.top_logprobs,
                )
            )
            for number in range(count)
        ]
        if replies and not any(reply.ok for reply in replies):
            raise EndpointError(f"no warm-up request was answered: {replies[-1].error}")

    async def _cold(self, item: ManifestItem, position: int) -> Reply:
        await self._empty()
        reply = await self._ask(item, position, Arm.COLD, "recipient")
        if self._options.paired:
            await self._cool_down()
        return reply

    async def _ask(self, item: ManifestItem, position: int, arm: Arm, role: str) -> Reply:
        before = await self._counted() if self._alone else None
        reply = await self._recipient.complete(
            Prompt(
                request_id=self._name(item, position, arm, role),
                text=item.recipient_prompt,
                max_tokens=self._options.recipient_max_tokens,
                cache_salt=self._salt(item, arm),
                top_logprobs=self._options.top_logprobs,
            )
        )
        if self._counters is None or before is None:
            return reply
        return await self._counters.confirm(before, reply)

    async def _counted(self) -> Counts | None:
        return None if self._counters is None else await self._counters.read()

    async def _empty(self) -> None:
        if self._reset is not None:
            await self._reset()

    async def _cool_down(self) -> None:
        await _sleep_ms(self._options.cooldown_ms)

    def _contaminated(self, cold: Reply) -> bool | None:
        """Whether a cold request found anything cached; None if it was not meant to be cold."""
        if self._reset is None and not self._options.isolate_by_salt:
            return None
        return None if cold.cached_tokens is None else cold.cached_tokens > 0

    def _name(self, item: ManifestItem, position: int, arm: Arm, role: str) -> str:
        return str(
            RequestName(
                run_id=self._options.run_id,
                arm=arm,
                item_id=item.item_id,
                role=role,
                position=position,
            )
        )

    def _salt(self, item: ManifestItem, arm: Arm) -> str:
        if not self._options.isolate_by_salt:
            return ""
        return f"{self._options.run_id}-{item.item_id}-{arm}"


def _numbers(start: int, words: int) -> str:
    counted = " ".join(str(start * 1_000_003 + number * 7919) for number in range(words))
    return f"Warm-up request number {start}. {counted} Say ready. Are you ready?"


async def _sleep_ms(milliseconds: float) -> None:
    if milliseconds > 0:
        await asyncio.sleep(milliseconds / 1000.0)
