"""The one hook: before the engine's forward, loaded regions are completed.

SGLang applies hooks fail-open: one that cannot be applied is only logged. So the
factory asks whether this one is really there, and nothing is loaded before it has run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from semblend.integration.scheduler.request import Stage
from semblend.integration.sglang.log_lines import logger
from semblend.integration.sglang.request_state import known_state
from semblend.integration.tree.admitted import computed_exactly

_SIDE = "semblend_side"


def before_forward(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    """An AROUND hook on `TpModelWorker.forward_batch_generation(batch, …)`."""
    side = getattr(worker, _SIDE, None)
    if side is None:
        return original(worker, *args, **kwargs)
    batch = args[0] if args else kwargs.get("batch")
    try:
        batch = side.before_forward(batch)
    except Exception:
        # before_forward answers for its own failures; this is for our own bugs in it.
        logger.exception("SemBlend's hook failed; what it had loaded for is computed exactly")
        batch = _rescued(worker, batch)
    if args:
        return original(worker, batch, *args[1:], **kwargs)
    return original(worker, **{**kwargs, "batch": batch})


def attach(worker: Any, side: Any) -> None:
    """Let the hook of this worker find its backend."""
    setattr(worker, _SIDE, side)


def is_installed(worker: Any) -> bool:
    """Whether a call of this worker's forward goes through the hook."""
    function = getattr(type(worker), "forward_batch_generation", None)
    while function is not None:
        cells = getattr(function, "__closure__", None) or ()
        if any(_content(cell) is before_forward for cell in cells):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _rescued(worker: Any, batch: Any) -> Any:
    """The batch with every loaded region computed by the engine's own forward."""
    from semblend.integration.sglang.batch_rows import correct_cached_tokens
    from semblend.integration.sglang.exact_recompute import with_regions_computed

    regions = {}
    loaded = list(_loaded(batch))
    try:
        for row, request, state in loaded:
            regions[row] = state.handle.load.region
            correct_cached_tokens(request, state.handle.load.plan, reused=False)
            computed_exactly(state)
        if not regions:
            return batch
        table = worker.model_runner.req_to_token_pool.req_to_token
        return with_regions_computed(batch, regions, table)
    except Exception:
        logger.exception("SemBlend cannot have regions computed; their requests are stopped")
        _stop([request for _, request, _ in loaded])
        return batch


def _loaded(batch: Any) -> Iterator[tuple[int, Any, Any]]:
    for row, request in enumerate(getattr(batch, "reqs", None) or ()):
        state = known_state(request)
        if state is not None and state.stage is Stage.LOADING and state.handle.load is not None:
            yield row, request, state


def _stop(requests: list[Any]) -> None:
    """Drop the output of requests whose regions hold nothing: never a wrong answer."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    for request in requests:
        request.discard_output_reason = FINISH_ABORT("SemBlend could not complete a load")
