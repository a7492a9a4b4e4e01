"""`semblend bench prefill`: cold and warm time to first token, as ratios within one run."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.bench.miss_cost import JUDGED_TOKENS, MissCost, add_miss_rows, measure_miss
from semblend.core.errors import MissingExtraError
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.engine.api import GenerationRequest, RequestReport, SamplingParams
from semblend.engine.options import EngineOptions
from semblend.terminal.progress import Advance, advancing, unseen

if TYPE_CHECKING:
    from semblend.engine.engine import EmbeddedEngine

STDERR = Console(stderr=True)
INSTRUCTION_TOKENS, QUESTION_TOKENS = 200, 64
POLICIES = {"0 %": "none", "5 %": "random(0.05)", "10 %": "random(0.1)", "15 %": "random(0.15)"}
"""Recompute ratios, in blocks of 32 tokens. Which blocks are recomputed does not affect the time.
"""
TARGETS = {(4096, "0 %"): 12.0, (8192, "0 %"): 18.0, (8192, "10 %"): 5.0}
"""Lowest acceptable cold/warm ratio for the reference model on two CPU cores."""
ROUND_PASSES = 4
"""Cost of a round in cold prefills: cold, plain and a miss, and one for all warm requests."""
COLD_LIMIT = 1.1
LOOKUP_LIMIT = 0.01
WARM_SAMPLES = 3
"""Warm requests per round and policy; their median counts.

A warm request takes a twelfth of a cold one, so the same hiccup of the machine distorts it twelve
times as much.
"""


@dataclass(slots=True)
class CaseTimes:
    """Seconds per case, one entry per round. Rounds are interleaved so that ratios are paired."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def median(self, case: str) -> float:
        return float(np.median(self.seconds[case]))

    def ratio(self, above: str, below: str) -> float:
        """Median over rounds of `above` divided by `below`."""
        pairs = zip(self.seconds[above], self.seconds[below], strict=True)
        return float(np.median([a / b for a, b in pairs]))


def bench_prefill(
    model: Annotated[
        str, typer.Option(help="Model folder or hub name.")
    ] = "models/semblend-reference-27m",
    lengths: Annotated[
        str, typer.Option(help="Prompt lengths, separated by commas.")
    ] = "1024,4096,8192",
    repeats: Annotated[
        int, typer.Option(min=1, help="Rounds per length; medians are reported.")
    ] = 7,
    pairs: Annotated[
        int, typer.Option(min=1, help="Pairs of misses per length, with and without SemBlend.")
    ] = 8,
    threads: Annotated[
        int, typer.Option(min=0, max=4096, help="CPU threads; 0 uses all cores.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed for all generated text.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(help="Write a plot to this file (.png, .svg).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure cold and warm time to first token over context lengths and recompute ratios.

    The document was read before, after a different instruction. The prompt has a new 200-token
    instruction and a new 64-token question. Targets apply to the reference model on a CPU; for
    other models the ratios have no target.
    """
    import torch

    from semblend.engine.engine import EmbeddedEngine

    wanted = _lengths(lengths)
    if threads:
        torch.set_num_threads(threads)
    engine = EmbeddedEngine.load(
        model,
        options=EngineOptions(pool_bytes=2 << 30, host_donor_bytes=2 << 30),
        settings=Settings(
            embedder=EmbedderKind.NONE, allow_uncertified=True, recompute_policy="none"
        ),
    )
    plain = _plain_model(model, engine)
    report = BenchmarkReport("prefill")
    # Other load is part of the times, so show the reader how much there was.
    report.add("machine", "load average before the run", os.getloadavg()[0], "processes")
    judged = Path(model).name == "semblend-reference-27m"
    results: dict[int, CaseTimes] = {}
    try:
        work = sum(length * (repeats * ROUND_PASSES + 2 * pairs) for length in wanted)
        with advancing("bench prefill, tokens", work, STDERR) as advance:
            for length in wanted:
                results[length] = measure(
                    engine, plain, length, repeats=repeats, seed=seed, advance=advance
                )
                misses = measure_miss(
                    engine, _first_token, length, pairs=pairs, seed=seed, advance=advance
                )
                add_rows(report, length, results[length], misses, judged=judged)
    finally:
        engine.close()
    if plot is not None:
        draw(results, plot)
    report.show(as_json=as_json)
    raise typer.Exit(1 if report.failed else 0)


def measure(
    engine: EmbeddedEngine,
    plain: Any,
    length: int,
    *,
    repeats: int,
    seed: int,
    advance: Advance = unseen,
) -> CaseTimes:
    """Time every case `repeats` times, in interleaved rounds."""
    rng = np.random.default_rng(seed + length)
    vocabulary = engine.model.vocab_size
    # The context must hold the prompt and one generated token.
    size = min(length, engine.max_prompt_tokens) - INSTRUCTION_TOKENS - QUESTION_TOKENS

    def text(tokens: int) -> TokenArray:
        return rng.integers(vocabulary // 8, vocabulary, tokens).astype(np.int32)

    document = text(size)

    def prompt() -> TokenArray:
        return np.concatenate((text(INSTRUCTION_TOKENS), document, text(QUESTION_TOKENS)))

    engine.drop_donors()
    engine.flush_prefix_cache()
    _first_token(engine, prompt(), donate=True)
    engine.donors.wait()
    engine.flush_prefix_cache()
    times = CaseTimes()
    for policy in POLICIES.values():  # warm up: the first pass of a shape allocates its memory
        _first_token(engine, prompt(), policy=policy)
    for number in range(repeats):
        tokens = prompt()
        # Alternate, so that neither case always follows the other.
        for case in ("cold", "plain") if number % 2 else ("plain", "cold"):
            seconds = (
                _first_token(engine, tokens, reuse=False).ttft_ms / 1e3
                if case == "cold"
                else _plain_seconds(plain, tokens)
            )
            times.seconds[case].append(seconds)
        for name, policy in POLICIES.items():
            warm = [_first_token(engine, tokens, policy=policy) for _ in range(WARM_SAMPLES)]
            reused = min(report.reused_tokens for report in warm)
            if reused < (1.0 - _ratio_of(name)) * size - 64:
                raise typer.BadParameter(f"only {reused} of {size} tokens were reused")
            times.seconds[name].append(float(np.median([w.ttft_ms for w in warm])) / 1e3)
        miss = _first_token(engine, text(len(tokens)))
        times.seconds["miss"].append(miss.ttft_ms / 1e3)
        times.seconds["lookup"].append(miss.lookup_ms / 1e3)
        advance(length * ROUND_PASSES)
    return times


def add_rows(
    report: BenchmarkReport, length: int, times: CaseTimes, misses: MissCost, *, judged: bool
) -> None:
    """Add one row per figure, with the targets that apply."""
    case = f"{length} tokens"

    def target(limit: float | None) -> float | None:
        return limit if judged else None

    report.add(case, "cold time to first token", times.median("cold") * 1e3, "ms")
    report.add(
        case,
        "cold against plain transformers SDPA",
        times.ratio("cold", "plain"),
        "ratio",
        at_most=target(COLD_LIMIT),
    )
    for name in POLICIES:
        metric = f"warm, {name} recomputed"
        report.add(case, metric, times.median(name) * 1e3, "ms")
        report.add(
            case,
            f"speed-up, {name} recomputed",
            times.ratio("cold", name),
            "ratio",
            at_least=target(TARGETS.get((length, name))),
        )
    report.add(
        case,
        "lookup of a miss, share of its time to first token",
        times.ratio("lookup", "miss"),
        "share",
        at_most=target(LOOKUP_LIMIT if length >= JUDGED_TOKENS else None),
    )
    add_miss_rows(report, case, misses, length=length, judged=judged)


def draw(results: dict[int, CaseTimes], path: Path) -> None:
    """Plot speed-up over context length, one line per recompute ratio."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError(
            package="matplotlib", extra="benchmarks", purpose="semblend bench prefill --plot"
        ) from error
    figure, axes = plt.subplots(figsize=(7, 4.5))
    lengths = sorted(results)
    for name in POLICIES:
        ratios = [results[length].ratio("cold", name) for length in lengths]
        axes.plot(lengths, ratios, marker="o", label=f"{name} recomputed")
    axes.set(
        xlabel="prompt tokens",
        ylabel="cold / warm time to first token",
        xticks=lengths,
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _lengths(text: str) -> list[int]:
    """Parse prompt lengths such as ``1024,4096``."""
    least = INSTRUCTION_TOKENS + QUESTION_TOKENS + 1
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < least:
        raise typer.BadParameter(
            f"expected whole numbers of at least {least}, separated by commas, got {text!r}",
            param_hint="--lengths",
        )
    return found


def _ratio_of(name: str) -> float:
    return float(name.removesuffix(" %")) / 100


def _first_token(
    engine: EmbeddedEngine,
    tokens: TokenArray,
    *,
    reuse: bool = True,
    donate: bool = False,
    policy: str | None = None,
) -> RequestReport:
    request = GenerationRequest(
        request_id=f"bench-{time.monotonic_ns()}",
        tokens=tokens,
        namespace=engine.namespace(),
        sampling=SamplingParams(max_tokens=1, ignore_eos=True),
        reuse=reuse,
        donate=donate,
        policy=policy,
    )
    return engine.submit(request).result().report


def _plain_model(name: str, engine: EmbeddedEngine) -> Any:
    """Load the same weights with transformers' own SDPA attention."""
    from transformers import AutoModelForCausalLM

    plain: Any = AutoModelForCausalLM.from_pretrained(
        name, dtype=engine.model.kv_shape.dtype, attn_implementation="sdpa"
    )
    return plain.to(engine.model.device).eval()


def _plain_seconds(plain: Any, tokens: TokenArray) -> float:
    """Time an ordinary prefill. It keeps no K/V, which is the faster way to run one."""
    import torch

    ids = torch.from_numpy(tokens.astype(np.int64))[None].to(plain.device)
    with torch.inference_mode():
        started = time.perf_counter()
        int(plain(ids, use_cache=False, logits_to_keep=1).logits[0, -1].argmax())
        return time.perf_counter() - started
