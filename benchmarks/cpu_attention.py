"""The fastest way to a bottom-right causal mask on a CPU: one mask, or two merged parts?

    python benchmarks/cpu_attention.py

The reference model's heads (6 query, 2 K/V, 64 wide), one layer, one core, queries at the
end of a long context. Prints one JSON object; see docs/lab/cpu-attention.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.engine.attention import flash, merge

KV_HEADS, GROUPS, DIM = 2, 3, 64
SCALE = DIM**-0.5


def best_ms(call: Callable[[], object], repeats: int = 15) -> float:
    """Least processor time of a few calls; on one thread that is the time on a quiet core."""
    call()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return min(times) * 1e3


@torch.inference_mode()
def measure(report: BenchmarkReport, queries: int, keys: int) -> None:
    """Time four ways for `queries` rows that see `keys` keys, including their own."""
    past = keys - queries
    query = torch.randn(queries, KV_HEADS, GROUPS, DIM).permute(1, 2, 0, 3)
    key, value = (torch.randn(keys, KV_HEADS, DIM).transpose(0, 1)[:, None] for _ in range(2))
    shared = (KV_HEADS, GROUPS, -1, DIM)
    mask = torch.full((queries, keys), float("-inf")).triu(past + 1)

    def own() -> tuple[torch.Tensor, torch.Tensor]:
        rows = (key[:, :, past:].expand(shared), value[:, :, past:].expand(shared))
        return flash(query, *rows, causal=True, scale=SCALE)

    def masked() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key.expand(shared), value.expand(shared), attn_mask=mask, scale=SCALE
        )

    def split() -> torch.Tensor:
        rows = (key[:, :, :past].expand(shared), value[:, :, :past].expand(shared))
        return merge(*own(), *flash(query, *rows, causal=False, scale=SCALE))[0]

    def folded() -> torch.Tensor:
        rows = query.reshape(KV_HEADS, 1, GROUPS * queries, DIM)
        out, lse = flash(rows, key[:, :, :past], value[:, :, :past], causal=False, scale=SCALE)
        return merge(*own(), out.view(query.shape), lse.view(query.shape[:3]))[0]

    expected = masked()
    for name, way in (("one call with a mask", masked), ("two parts", split), ("folded", folded)):
        if not torch.allclose(way(), expected, atol=1e-4):
            raise SystemExit(f"{name} is wrong")
        report.add(f"{queries} of {keys}", name, best_ms(way), "ms")


def main() -> None:
    torch.set_num_threads(1)
    report = BenchmarkReport("cpu attention", command=" ".join(["python", *sys.argv]))
    for queries, keys in ((32, 8192), (64, 8192), (256, 8192), (1024, 8192)):
        measure(report, queries, keys)
    report.show(as_json=True)


if __name__ == "__main__":
    main()
