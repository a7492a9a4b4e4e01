"""A real embedded engine behind the fuzzed server: random weights, the bundled tokenizer.

Small enough to answer in milliseconds, but complete: donors, an exact prefix cache, three tiers,
recompute and shadow samples.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import AutoTokenizer

from semblend.core.settings import EmbedderKind, Settings
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.model import wrap_model
from semblend.engine.options import EngineOptions

TOKENIZER = Path(__file__).resolve().parents[2] / "models" / "semblend-reference-27m"
_SETTINGS = Settings(
    embedder=EmbedderKind.NONE,
    allow_uncertified=True,
    recompute_policy="span_head(4)",
    min_span_tokens=16,
    min_prompt_tokens=16,
    shadow_rate=0.5,
)


@contextmanager
def real_engine() -> Iterator[EmbeddedEngine]:
    """An engine for the duration of the block."""
    from tests.engine.models import plain_model

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    model = wrap_model(
        plain_model("llama-gqa", vocab_size=len(tokenizer)), name="tiny", tokenizer=tokenizer
    )
    token_bytes = model.kv_shape.token_bytes
    with tempfile.TemporaryDirectory() as folder:
        options = EngineOptions(
            pool_bytes=token_bytes * 4096,
            page_size=8,
            host_donor_bytes=token_bytes * 1024,
            disk_donor_bytes=token_bytes * 4096,
            donor_folder=Path(folder),
        )
        with EmbeddedEngine(model, options=options, settings=_SETTINGS) as engine:
            yield engine


def pages_held(engine: EmbeddedEngine) -> int:
    """Pages still held when nothing runs and no prefix is cached."""
    engine.donors.wait()
    engine.flush_prefix_cache()
    return engine.pool.allocator.total - engine.pool.allocator.free
