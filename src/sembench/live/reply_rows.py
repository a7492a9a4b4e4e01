"""Builds one result row from a manifest item and its replies.

Times and answers come from the client, reuse from the backend's own report. Nothing is
filled in: what was not reported stays null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sembench import metrics, quality
from sembench.live.reply import Reply
from sembench.model import ManifestItem
from sembench.results import RequestRow
from sembench.tokenizers import Tokenizer

TOKENIZER_TOLERANCE = 0.25
"""Above this relative difference in prompt length, client and engine tokenize differently."""
SAME_ANSWER_ROUGE = 0.5
"""A repeat less similar to the cold answer than this is a different answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMaker:
    """Builds rows with one tokenizer, block size and quality threshold."""

    tokenizer: Tokenizer
    block_size: int
    quality_threshold: float = quality.PASS_THRESHOLD

    def row(
        self,
        item: ManifestItem,
        *,
        arm: str,
        reply: Reply,
        cold: Reply | None = None,
        repeat: Reply | None = None,
        donors: Sequence[Reply] = (),
        flush_contaminated: bool | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> RequestRow:
        fields: dict[str, Any] = {
            **self._case(item),
            **self._exact(item),
            **_served(reply, donors),
        }
        fields |= self._confirmed(reply, fields)
        fields |= self._judged(item, reply)
        if cold is not None:
            fields |= self._paired(item, reply, cold)
        if repeat is not None:
            fields |= self._repeated(item, reply, repeat, cold)
        return RequestRow(
            **fields,
            arm=arm,
            error=_error(reply, donors),
            flush_contaminated=flush_contaminated,
            extra={**_confirmation(reply), **(extra or {})},
        )

    def _case(self, item: ManifestItem) -> dict[str, Any]:
        known = ("expected_exact", "expected_semantic", "expected_supplied_tokens")
        more = ("expected_span_target_start", "expected_no_fact_leak", "expected_verifier_accept")
        return {
            "item_id": item.item_id,
            "dataset": item.dataset,
            "transform": item.transform,
            "source_id": item.source_id,
            "negative_control": item.negative_control,
            "traffic_class": item.metadata.get("traffic_class"),
            **{name: item.metadata.get(name) for name in (*known, *more)},
        }

    def _exact(self, item: ManifestItem) -> dict[str, Any]:
        """What an exact block cache would cover: by the manifest alone, equal on any engine."""
        recipient = self.tokenizer.encode(item.recipient_prompt)
        donors = [self.tokenizer.encode(donor.text) for donor in item.donor_prompts]
        exact = metrics.exact_block_mask(recipient, donors, self.block_size)
        return {
            **metrics.exact_fields(len(recipient), exact, self.block_size),
            "donor_tokens": sum(map(len, donors)),
            "donor_count": len(donors),
            "block_strip": metrics.block_strip(exact, None),
        }

    def _confirmed(self, reply: Reply, fields: Mapping[str, Any]) -> dict[str, Any]:
        cached = _in_client_tokens(
            reply.cached_tokens, reply.prompt_tokens, fields["prompt_tokens"]
        )
        return {
            **metrics.confirmed_fields(
                cached,
                total_blocks=fields["total_blocks"],
                exact_block_hit_rate=fields["exact_block_hit_rate"],
                size=self.block_size,
            ),
            "exact_confirmed_tokens": reply.exact_tokens,
            "fuzzy_confirmed_tokens": reply.reused_tokens,
            "claimed_reuse_tokens": reply.reused_tokens,
        }

    def _judged(self, item: ManifestItem, reply: Reply) -> dict[str, Any]:
        if not reply.ok:
            # A failed request answered nothing, so it fails the quality check too.
            return {"quality_pass": False} if item.answers else {}
        score = quality.answer_recall(reply.text, item.answers)
        return {
            "output_text": reply.text,
            "output_tokens": reply.output_tokens,
            "output_token_ids": reply.token_ids,
            "output_top_logprobs": list(reply.top_logprobs) if reply.top_logprobs else None,
            "quality_score": score,
            "quality_pass": None if score is None else score >= self.quality_threshold,
            "quality_f1": quality.token_f1(reply.text, item.answers),
            "quality_rouge_l": quality.best_rouge_l(reply.text, item.answers),
            "donor_fact_leak": leak(item, reply),
        }

    def _paired(self, item: ManifestItem, warm: Reply, cold: Reply) -> dict[str, Any]:
        score = quality.answer_recall(cold.text, item.answers) if cold.ok else None
        both = warm.ok and cold.ok
        return {
            "cold_ttft_ms": cold.ttft_ms,
            "cold_latency_ms": cold.latency_ms,
            "cold_cached_tokens": cold.cached_tokens,
            "cold_output_text": cold.text if cold.ok else None,
            "cold_quality_score": score,
            "cold_quality_pass": None if score is None else score >= self.quality_threshold,
            "cold_donor_fact_leak": leak(item, cold),
            "cold_error": cold.error,
            "ttft_speedup": cold.ttft_ms / warm.ttft_ms
            if both and cold.ttft_ms and warm.ttft_ms
            else None,
            "warm_vs_cold_rouge_l": quality.rouge_l(warm.text, cold.text) if both else None,
            "warm_vs_cold_kl": mean_kl(cold, warm) if both else None,
        }

    def _repeated(
        self, item: ManifestItem, warm: Reply, repeat: Reply, cold: Reply | None
    ) -> dict[str, Any]:
        compared = cold is not None and cold.ok and repeat.ok
        return {
            "repeat_output_text": repeat.text if repeat.ok else None,
            "repeat_exact_tokens": repeat.exact_tokens,
            "repeat_vs_cold_rouge_l": quality.rouge_l(repeat.text, cold.text)
            if compared and cold is not None
            else None,
            "repeat_contaminated": contaminated(item, warm, repeat, cold),
        }


def leak(item: ManifestItem, reply: Reply) -> bool | None:
    """Whether the answer states the donor's value; None if the item has no such value.

    A word of the donor's value that appears nowhere in the prompt can only have come
    through K/V, so one is enough.
    """
    value = item.metadata.get("divergent_donor_value")
    if not reply.ok or not isinstance(value, str) or not value.strip():
        return None
    own = set(quality.normalise_answer(item.recipient_prompt).split())
    foreign = [word for word in quality.normalise_answer(value).split() if word not in own]
    return any(
        quality.leaks_donor_fact(reply.text, item.answers, word) for word in foreign or [value]
    )


def contaminated(item: ManifestItem, warm: Reply, repeat: Reply, cold: Reply | None) -> bool | None:
    """Whether approximate K/V of the warm request came back as an exact hit.

    By the counts: of a prompt of n tokens of which r were reused, an exact cache may hold
    at most n − r tokens. By the answer: the repeat reports more exact tokens than the warm
    request did and is wrong where the cold answer was right. None if neither can be
    decided. Never true if nothing was reused, because then everything cached was computed
    exactly.
    """
    if not (warm.ok and repeat.ok):
        return None
    if warm.reused_tokens == 0:
        return False
    numbers: bool | None = None
    if warm.reused_tokens is not None and repeat.exact_tokens is not None and warm.prompt_tokens:
        numbers = repeat.exact_tokens > warm.prompt_tokens - warm.reused_tokens
    answers: bool | None = None
    if cold is not None and cold.ok:
        grew = (repeat.cached_tokens or 0) > (warm.exact_tokens or 0) and not repeat.reused_tokens
        answers = grew and _worse(item, repeat, cold)
    known = [verdict for verdict in (numbers, answers) if verdict is not None]
    return any(known) if known else None


def _worse(item: ManifestItem, repeat: Reply, cold: Reply) -> bool:
    """Whether the repeat leaks, or fails where cold passes; without answers, whether it differs.

    Two runs of a real engine differ slightly, so different wording alone is no proof.
    """
    if leak(item, repeat) is True and leak(item, cold) is not True:
        return True
    before = quality.answer_recall(cold.text, item.answers)
    after = quality.answer_recall(repeat.text, item.answers)
    if before is None or after is None:
        return quality.rouge_l(repeat.text, cold.text) < SAME_ANSWER_ROUGE
    return before >= quality.PASS_THRESHOLD > after


def mean_kl(cold: Reply, warm: Reply) -> float | None:
    """Mean KL over the positions before the two answers diverge (while contexts are equal)."""
    if not cold.top_logprobs or not warm.top_logprobs:
        return None
    values: list[float] = []
    for before, after in zip(cold.top_logprobs, warm.top_logprobs, strict=False):
        if not before or not after:
            break
        values.append(quality.kl_top_k(before, after))
        if max(before, key=before.__getitem__) != max(after, key=after.__getitem__):
            break
    return sum(values) / len(values) if values else None


def _served(reply: Reply, donors: Sequence[Reply]) -> dict[str, Any]:
    workers = tuple(donor.worker_id for donor in donors if donor.worker_id)
    return {
        "route_outcome": reply.route,
        "worker_id": reply.worker_id,
        "donor_worker_ids": workers or None,
        "ttft_ms": reply.ttft_ms if reply.ok else None,
        "latency_ms": reply.latency_ms if reply.ok else None,
        "engine_ttft_ms": reply.engine_ttft_ms,
        "queue_time_ms": reply.queue_time_ms,
        "request_id": reply.request_id,
        "engine_request_id": reply.engine_request_id,
        "engine_prompt_tokens": reply.prompt_tokens,
    }


def _confirmation(reply: Reply) -> dict[str, Any]:
    """Who confirmed the reuse and how much was continued, if reported."""
    said = {"confirmed_by": reply.confirmed_by, "continued_tokens": reply.continued_tokens}
    return {name: value for name, value in said.items() if value is not None}


def _error(reply: Reply, donors: Sequence[Reply]) -> str | None:
    if reply.error is not None:
        return reply.error
    failed = next((index for index, donor in enumerate(donors) if not donor.ok), None)
    return None if failed is None else f"donor {failed}: {donors[failed].error}"


def _in_client_tokens(cached: int | None, engine: int | None, client: int) -> int | None:
    """Convert cached tokens to the client's token unit.

    The number stays the same if both count alike. If the engine clearly uses another
    tokenizer, the share is kept instead: engine tokens over client blocks would report
    more reuse than there was.
    """
    if cached is None or not engine or not client:
        return cached
    if abs(engine - client) <= TOKENIZER_TOLERANCE * client:
        return cached
    return round(cached / engine * client)
