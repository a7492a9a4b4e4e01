"""Reference answers out of vLLM's outputs; imports nothing of vLLM."""

from __future__ import annotations

from typing import Any

from benchmarks.engine_fuzz.comparing import Answer


def answer_of(output: Any) -> Answer:
    """vLLM's output of a request that asked for log-probabilities."""
    (best,) = output.outputs
    return Answer(
        tokens=tuple(best.token_ids),
        likely=tuple(
            {token: said.logprob for token, said in place.items()} for place in best.logprobs or ()
        ),
        said=(output.kv_transfer_params or {}).get("semblend", {}),
    )
