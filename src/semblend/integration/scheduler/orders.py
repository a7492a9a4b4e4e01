"""What travels between an adapter's two sides, as plain values.

Scheduler to workers, every step: :class:`StepOrders`. Workers to scheduler:
:class:`WorkerReport`, one per rank, summed on the way. With tensor parallelism both
cross process boundaries, so nothing here refers to a tensor or a request object.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Hole, Plan, Span
from semblend.core.tokens import TokenArray
from semblend.integration.lora_adapter import LoraAdapter
from semblend.planning.engine_times import EngineTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCommand:
    """Fill [start, end) of a request's blocks: copy spans, compute holes."""

    request_id: str
    block_ids: tuple[int, ...]
    tokens: TokenArray
    """The whole prompt, int32."""
    start: int
    """Tokens the engine's own prefix cache supplies."""
    end: int
    copies: tuple[Span, ...]
    holes: tuple[Hole, ...]
    """Runs to compute; for a probing policy, plus the rest of the prompt."""
    refine: Plan | None = None
    """The plan, where a dynamic policy adds to the holes once the spans are in place."""
    depth_table: str = ""
    """File of the table that shifts copies to their new depth; empty for no shift."""
    adapter: LoraAdapter | None = None
    """What the request runs with, if not the base model."""
    refused: str = ""
    """Why this load must fail: tokens were allocated for which nothing was claimed."""

    @property
    def reused_tokens(self) -> int:
        """Tokens whose K/V is copied."""
        return sum(span.length for span in self.copies)

    @property
    def hole_tokens(self) -> int:
        """Tokens computed in the nested pass."""
        return sum(map(len, self.holes))

    @property
    def tokens_to_compute(self) -> int:
        """Tokens of its passes: holes and, for a probing policy, the rest of the prompt."""
        tail = 0 if self.refine is None else self.end - self.refine.end
        return self.hole_tokens + tail

    def claimed_blocks(self, block_size: int) -> tuple[int, ...]:
        """Blocks that hold a claimed token; these are reported when the load fails."""
        return self._blocks(self.start, block_size)

    def spoilt_blocks(self, failure: LoadFailure, block_size: int) -> tuple[int, ...]:
        """Those of them that hold anything else than the engine would compute."""
        return self._blocks(max(self.start, failure.computed_until), block_size)

    def _blocks(self, start: int, block_size: int) -> tuple[int, ...]:
        return self.block_ids[start // block_size : -(-self.end // block_size)]


def impossible_load(
    *, request_id: str, block_ids: tuple[int, ...], tokens: TokenArray, start: int, end: int
) -> LoadCommand:
    """A load that fails on purpose: the engine waits for tokens that were never claimed.

    Blocks before them may be shared with other requests and are never reported.
    """
    return LoadCommand(
        request_id=request_id,
        block_ids=block_ids,
        tokens=tokens,
        start=start,
        end=end,
        copies=(),
        holes=(),
        refused="tokens were allocated that were not claimed",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCommand:
    """Copy exact K/V: of a prompt that this step finishes computing, or of a finished request."""

    request_id: str
    donor_id: str
    block_ids: tuple[int, ...]
    tokens: TokenArray
    """What is copied, from the prompt's first token on, int32."""
    share_key: bytes
    """The namespace's key: names the segments."""
    shared_as: int | None = None
    """The donor's key in the fleet, if it is shared with other machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchCommand:
    """Fetch a donor that another machine shares; it is then stored like a captured one."""

    donor_id: str
    shared_as: int
    tokens: TokenArray
    """The donor's whole prompt, int32."""
    share_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowOrder:
    """Compute [start, end) of a sample's tokens on top of what its blocks hold."""

    sample_id: int
    request_id: str
    tokens: TokenArray
    """Prompt and compared output tokens, int32."""
    start: int
    end: int
    block_ids: tuple[int, ...]
    compared: int = 0
    """How many of the last tokens' distributions are wanted."""
    warm: bool = False
    """Whether the blocks are the request's own, over reused K/V."""
    adapter: LoraAdapter | None = None
    """What the request ran with, if not the base model."""


@dataclass(slots=True)
class StepOrders:
    """One step's orders."""

    loads: list[LoadCommand] = field(default_factory=list)
    captures: list[CaptureCommand] = field(default_factory=list)
    fetches: list[FetchCommand] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """Donors the scheduler has forgotten."""
    shadows: list[ShadowOrder] = field(default_factory=list)
    shadows_dropped: list[int] = field(default_factory=list)
    """Samples that ended."""
    held: list[str] = field(default_factory=list)
    """Finished requests whose blocks wait for their capture."""
    preempted: list[str] = field(default_factory=list)
    """Requests whose blocks are about to be overwritten."""
    drop_all: bool = False
    idle: bool = False
    """Whether this step computes nothing."""
    weights_epoch: int = 0
    """How often the weights have changed, as far as the scheduler knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailure:
    """Why one load did not happen."""

    reason: str
    """A `DeclineReason`."""
    detail: str
    donor_id: str | None = None
    computed_until: int = 0
    """Tokens of the prompt whose slots hold what the engine would compute; 0 if none are known."""

    @classmethod
    def by(cls, error: BaseException) -> LoadFailure:
        """A load or pass that raised."""
        reason = DeclineReason.MATERIALISATION_FAILED.value
        return cls(reason=reason, detail=f"{type(error).__name__}: {error}")


@dataclass(slots=True)
class WorkerReport:
    """What the ranks did. Counts are of ranks: something is done when all ranks did it."""

    captured: Counter[str] = field(default_factory=Counter)
    """Donors stored, by id."""
    capture_ms: dict[str, float] = field(default_factory=dict)
    """How long the slowest rank's copy took, by donor id."""
    capture_bytes: dict[str, int] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)
    """Captures that have ended, stored or not, by donor id: the blocks are no longer read."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Donors that were not stored, and why."""
    lost: set[str] = field(default_factory=set)
    """Donors whose K/V some rank no longer has."""
    shared: Counter[str] = field(default_factory=Counter)
    """Donors that other machines can fetch now, by id."""
    withdrawn: set[str] = field(default_factory=set)
    """Donors that some rank could not share or no longer shares."""
    loaded: Counter[str] = field(default_factory=Counter)
    """Loads carried out, by request id."""
    failed: dict[str, LoadFailure] = field(default_factory=dict)
    refined: dict[str, int] = field(default_factory=dict)
    """Tokens finally reused, where a dynamic policy took part."""
    shadow_done: set[int] = field(default_factory=set)
    """Samples of which another piece was computed."""
    shadow_failed: set[int] = field(default_factory=set)
    shadow_verdicts: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Mean KL(cold || warm) and share of differing best tokens, by sample."""
    weights_epoch: int = 0
    """How often the weights have changed; in every report from the first change on."""
    unfit: str = ""
    """Why a rank can neither load nor keep K/V, if so; in every report of it."""
    clipped: int = 0
    """Numbers of moved K that did not fit into the cache's format."""
    engine_times: EngineTimes | None = None
    """How fast the engine is, measured before it served; in one report."""
    replayed: int = 0
    """Forwards over holes that were replayed from graphs the engine had recorded."""
    layers: int = 0
    load_ms: float = 0.0
    nested_ms: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not (
            self.answered
            or self.lost
            or self.loaded
            or self.failed
            or self.shared
            or self.withdrawn
            or self.shadow_done
            or self.shadow_failed
            or self.weights_epoch
            or self.unfit
            or self.engine_times is not None
        )

    def __add__(self, other: WorkerReport) -> WorkerReport:
        """This rank's report and another's."""
        return WorkerReport(
            captured=self.captured + other.captured,
            capture_ms=_largest(self.capture_ms, other.capture_ms),
            capture_bytes={
                key: self.capture_bytes.get(key, 0) + other.capture_bytes.get(key, 0)
                for key in {*self.capture_bytes, *other.capture_bytes}
            },
            answered=self.answered + other.answered,
            rejected={**other.rejected, **self.rejected},
            lost=self.lost | other.lost,
            shared=self.shared + other.shared,
            withdrawn=self.withdrawn | other.withdrawn,
            loaded=self.loaded + other.loaded,
            failed={**other.failed, **self.failed},
            refined={**other.refined, **self.refined},
            shadow_done=self.shadow_done | other.shadow_done,
            shadow_failed=self.shadow_failed | other.shadow_failed,
            shadow_verdicts={**other.shadow_verdicts, **self.shadow_verdicts},
            weights_epoch=max(self.weights_epoch, other.weights_epoch),
            unfit=self.unfit or other.unfit,
            clipped=self.clipped + other.clipped,
            engine_times=_slower(self.engine_times, other.engine_times),
            replayed=max(self.replayed, other.replayed),
            layers=max(self.layers, other.layers),
            load_ms=max(self.load_ms, other.load_ms),
            nested_ms=max(self.nested_ms, other.nested_ms),
        )


def _slower(mine: EngineTimes | None, theirs: EngineTimes | None) -> EngineTimes | None:
    return mine + theirs if mine is not None and theirs is not None else mine or theirs


def _largest(mine: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    keys = {*mine, *theirs}
    return {key: max(mine.get(key, 0.0), theirs.get(key, 0.0)) for key in keys}
