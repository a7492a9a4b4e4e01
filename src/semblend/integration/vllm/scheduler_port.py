"""vLLM's scheduler, as the shared scheduler side needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from semblend.core.errors import DonorError
from semblend.core.tokens import TokenArray, as_token_array
from semblend.integration.adapter_names import AdapterNames
from semblend.integration.ladder import split_salt
from semblend.integration.lora_adapter import LoraAdapter
from semblend.integration.modes import ReuseRequests
from semblend.integration.scheduler.port import Loan, Step
from semblend.integration.scheduler.request import Arrival
from semblend.integration.vllm import namespaces
from semblend.integration.vllm.block_hashes import PrivateChain
from semblend.integration.vllm.samples import SampleKey, sample_key, samples_of
from semblend.integration.vllm.setup import VllmSetup
from semblend.integration.vllm.support import request_refusal

_FINISHED_NORMALLY = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")


class VllmRequest:
    """One of vLLM's requests."""

    __slots__ = ("_chain", "_continues", "_port", "_sample_key", "request")

    def __init__(self, request: Any, port: VllmScheduler) -> None:
        self.request = request
        self._port = port
        self._chain: PrivateChain | None = None
        self._continues = False
        """Whether its hashes are those of a chain, which a failed load leaves as they are."""
        self._sample_key: SampleKey | bool = False
        """False until it was asked for."""

    def make_private(self, first_approximate_token: int) -> None:
        """Replace block hashes from here on with ones nobody else can compute."""
        if self._chain is None:
            first = first_approximate_token // self._port.hash_block_size
            self._chain = PrivateChain(self.request, first=first)

    def undo_private(self) -> None:
        """Restore the replaced hashes."""
        if self._chain is not None and not self._continues:
            self._chain.undo()
            self._chain = None

    def continue_with(self, first: int, chain: Sequence[bytes]) -> None:
        """Take over a chain's hashes from block `first` on, and be private behind them."""
        self.leave_chain()
        self._chain, self._continues = PrivateChain(self.request, first=first, chain=chain), True

    def leave_chain(self) -> None:
        """Restore the hashes if they are those of a chain."""
        if self._continues:
            self._continues = False
            self.undo_private()

    @property
    def public_hashes(self) -> Sequence[bytes]:
        """The hashes vLLM computed for the prompt's whole blocks."""
        return tuple(self._public[: self._prompt_blocks])

    def public_hash(self, number: int) -> bytes | None:
        """One of these; None if the prompt has no such block."""
        return self._public[number] if number < self._prompt_blocks else None

    @property
    def _public(self) -> Sequence[bytes]:
        return self.request.block_hashes if self._chain is None else self._chain.public

    @property
    def _prompt_blocks(self) -> int:
        hashed = len(self._public)
        return min(hashed, len(self.request.prompt_token_ids or ()) // self._port.hash_block_size)

    def keep_private(self) -> None:
        """Keep the chain for the request's whole life."""
        if self._chain is not None:
            self._chain.keep()

    def stand_in(self, tokens: TokenArray) -> Any:
        """A request of vLLM's for these tokens, with the hashes vLLM gives them."""
        from vllm.v1.request import Request

        native = self.request
        return Request(
            request_id=f"{native.request_id}.stand-in",
            prompt_token_ids=tokens.tolist(),
            sampling_params=native.sampling_params,
            pooling_params=None,
            lora_request=native.lora_request,
            cache_salt=native.cache_salt,
            block_hasher=native._block_hasher if self._chain is None else self._chain.hasher,
        )

    def tell_cached(self, *, exact_tokens: int, reused_tokens: int) -> None:
        """Correct what vLLM reports as cached, because it counts every claimed token."""
        stats = getattr(self.request, "prefill_stats", None)
        if stats is not None:
            stats.set(
                num_prompt_tokens=len(self.request.prompt_token_ids or ()),
                num_local_cached_tokens=exact_tokens,
                num_external_cached_tokens=reused_tokens,
            )

    @property
    def sample_key(self) -> SampleKey:
        """What it has in common with other samples of its prompt; None if it is none."""
        if isinstance(self._sample_key, bool):
            self._sample_key = sample_key(self.request)
        return self._sample_key

    def samples(self, live: Iterable[VllmRequest]) -> int:
        """Live requests that sample this very prompt."""
        return samples_of(self.sample_key, (other.sample_key for other in live))

    def hints(self) -> dict[str, Any]:
        """`kv_transfer_params["semblend"]`, if it is a mapping."""
        hints = (self.request.kv_transfer_params or {}).get("semblend")
        return hints if isinstance(hints, dict) else {}

    @property
    def ended_normally(self) -> bool:
        """Whether its answer is complete."""
        return self.request.status.name in _FINISHED_NORMALLY

    @property
    def output_tokens(self) -> Sequence[int]:
        """What was sampled so far."""
        outputs: Sequence[int] = self.request.output_token_ids
        return outputs

    def free_blocks(self) -> None:
        """Return its blocks to vLLM's pool."""
        self._port.manager.free(self.request)


class VllmScheduler:
    """Represents vLLM's scheduler and its cache manager."""

    def __init__(self, setup: VllmSetup) -> None:
        self._setup = setup
        self.hash_block_size = setup.hash_block_size
        self.names_whole_blocks = setup.hash_block_size == setup.scheduler.block_size
        """Whether each block of the cache has a hash of its own."""
        self.manager: Any = None
        """Set later: vLLM creates its cache manager after the connector."""
        self._adapters = AdapterNames()

    def request_id(self, native: Any) -> str:
        return str(native.request_id)

    def handle(self, native: Any) -> VllmRequest:
        """Wrap one of vLLM's requests."""
        return VllmRequest(native, self)

    def arrival(self, native: Any) -> Arrival[VllmRequest]:
        """A new request as the shared side sees it."""
        options, handle = self._setup.options, self.handle(native)
        user_salt, ladder_id = native.cache_salt, None
        if options.staged:
            user_salt, ladder_id = split_salt(native.cache_salt)
        adapter, refusal = self._adapter(native.lora_request)
        hints = handle.hints()
        wanted, policy = hints.get("reuse"), hints.get("policy")
        opt_in = options.reuse is ReuseRequests.OPT_IN
        return Arrival(
            request_id=str(native.request_id),
            handle=handle,
            tokens=as_token_array(native.prompt_token_ids or []),
            namespace=namespaces.of_request(self._setup.scheduler.namespace, user_salt, adapter),
            ladder_id=ladder_id,
            refusal=request_refusal(native) or refusal,
            may_reuse=wanted is True if opt_in else wanted is not False,
            wants_capture=hints.get("capture"),
            policy=policy if isinstance(policy, str) and options.mode.uncertified else None,
            adapter=adapter,
        )

    def _adapter(self, request: Any) -> tuple[LoraAdapter | None, str | None]:
        """What a request runs with, or why it may neither reuse nor donate.

        Only nested passes see an adapter's weights, and certificates are of the base model.
        """
        if request is None:
            return None, None
        if not self._setup.options.nested:
            return None, "lora: only nested execution reuses with adapters"
        if not self._setup.options.mode.uncertified:
            return None, "lora: no certificate covers an adapter"
        try:
            return requested_adapter(request, self._adapters), None
        except (DonorError, OSError) as error:
            return None, f"lora: {error}"

    def blocks_of(self, request_id: str) -> tuple[int, ...]:
        """The request's blocks in vLLM's only cache group."""
        (block_ids,) = self.manager.get_block_ids(request_id)
        return tuple(block_ids)

    def borrow(self, count: int, *, keep_free: float) -> Loan | None:
        """Borrow blocks from vLLM's own pool."""
        pool = self.manager.block_pool
        if pool.get_num_free_blocks() - count < keep_free * pool.num_gpu_blocks:
            return None
        blocks = list(pool.get_new_blocks(count))
        return Loan(block_ids=tuple(block.block_id for block in blocks), blocks=blocks)

    def give_back(self, loan: Loan) -> None:
        """Free borrowed blocks."""
        self.manager.block_pool.free_blocks(reversed(loan.blocks))


def requested_adapter(request: Any, known: AdapterNames) -> LoraAdapter:
    """The adapter of one of vLLM's LoRARequests."""
    return known.of(
        name=request.lora_name,
        number=request.lora_int_id,
        path=request.lora_path,
        fused_experts=bool(getattr(request, "is_3d_lora_weight", False)),
    )


def step_of(scheduled: Any) -> Step:
    """What vLLM's SchedulerOutput is about to run."""
    return Step(
        idle=scheduled.total_num_scheduled_tokens == 0,
        computes=_computes(scheduled),
        preempted=scheduled.preempted_req_ids or (),
    )


def _computes(scheduled: Any) -> Iterator[tuple[str, int]]:
    """Read lazily: an oddity in it must not hold up the loads."""
    for new in scheduled.scheduled_new_reqs:
        tokens = scheduled.num_scheduled_tokens[new.req_id]
        yield new.req_id, new.num_computed_tokens + tokens
    running = scheduled.scheduled_cached_reqs
    for request_id, computed in zip(running.req_ids, running.num_computed_tokens, strict=True):
        yield request_id, computed + scheduled.num_scheduled_tokens[request_id]
