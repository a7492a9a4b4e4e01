"""``sembench run-turns`` and ``run-turns-offline``: conversations, turn by turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sembench.conversations import Limits, Story, load_story
from sembench.conversations.measuring import EarlierRequests
from sembench.conversations.offline_stories import offline_turns
from sembench.conversations.turn_rows import TURNS_VERSION, TurnRow, compare_turns, summarise_turns
from sembench.errors import EndpointError, ResultError, UsageError
from sembench.planners import PlannerSettings, make_planner
from sembench.progress import progress_bar
from sembench.provenance import environment, run_config, run_metadata, utc_now
from sembench.results import RunMetadata, read_json
from sembench.terminal import live_options as live
from sembench.terminal.option_groups import takes
from sembench.terminal.shared_options import BlockSize, TokenizerName
from sembench.tokenizers import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFlags:
    """Flags of both commands: which stories to play and how to measure them."""

    output: live.Output
    profile: Annotated[str, typer.Option("--profile", help="Kind of story: agent or chat.")] = (
        "agent"
    )
    conversations: Annotated[
        int, typer.Option("--conversations", min=1, help="Stories to play, one after another.")
    ] = 4
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same stories.")] = 0
    turns: Annotated[int, typer.Option("--turns", min=1, help="Requests per chat.")] = 10
    compact_words: Annotated[
        int,
        typer.Option("--compact-words", min=200, help="Compact the history at this many words."),
    ] = 1800
    compactions: Annotated[
        int, typer.Option("--compactions", min=0, help="Compactions per agent run.")
    ] = 2
    tokenizer: TokenizerName = None
    block_size: BlockSize = 16
    planner: Annotated[
        str, typer.Option("--planner", help="Planner to measure beside the oracle, or none.")
    ] = "semblend"
    run_id: live.RunId = None

    def stories(self) -> list[Story]:
        limits = Limits(
            turns=self.turns, compact_words=self.compact_words, compactions=self.compactions
        )
        return [
            load_story(self.profile, seed=self.seed, index=index, limits=limits)
            for index in range(self.conversations)
        ]

    def reuse(self, encoder: Tokenizer) -> EarlierRequests:
        """An empty record of what earlier requests leave behind."""
        settings = PlannerSettings(block_size=self.block_size, tokenizer=encoder.name)
        planner = None if self.planner == "none" else make_planner(self.planner, settings)
        return EarlierRequests(block_size=self.block_size, tokenizer=encoder.name, planner=planner)

    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@takes(TurnFlags)
def run_turns_offline(flags: TurnFlags) -> None:
    """Show how much of each turn a prefix cache, a planner and the oracle could reuse."""
    encoder = load_tokenizer(flags.tokenizer)
    run = run_metadata(engine="offline", manifest=None, run_id=flags.run_id, arm="single")
    with progress_bar() as bar:
        task = bar.add_task("Playing", total=None)
        rows = []
        for row in offline_turns(flags.stories(), encoder, flags.reuse(encoder)):
            rows.append(row)
            bar.advance(task)
    config = run_config({**flags.values(), "tokenizer": encoder.name})
    _finish(flags.output, run, config, rows, None)


@takes(TurnFlags)
def run_turns(
    flags: TurnFlags,
    base_url: live.BaseUrl,
    model: live.Model = None,
    api_key: live.ApiKey = "",
    tenant: live.Tenant = "",
    max_tokens: live.MaxTokens = 32,
    timeout_seconds: live.TimeoutSeconds = 900.0,
    donor_wait_ms: live.DonorWait = 2000.0,
    metrics_url: live.MetricsUrl = None,
    live_answers: Annotated[
        bool,
        typer.Option(
            "--live-answers/--scripted-answers",
            help="Continue with the model's answers, or with the script's.",
        ),
    ] = True,
    tools: Annotated[
        bool, typer.Option("--tools/--no-tools", help="Send the agent's tools with each request.")
    ] = True,
    cache_salt: Annotated[
        str, typer.Option(help="cache_salt of every request; default: one for this run.")
    ] = "",
    share_cache: Annotated[
        bool, typer.Option("--share-cache", help="Send no cache_salt at all.")
    ] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Result of the same turns on another engine to compare with."),
    ] = None,
) -> None:
    """Play stories against an endpoint and record what each turn computed and how long it took."""
    own = {name: value for name, value in locals().items() if name != "flags"}
    live.require_http()
    live.require_urls(base_url=base_url, metrics_url=metrics_url)

    from sembench.conversations.live import LiveTurns, live_turns
    from sembench.live.endpoint_tokens import EndpointTokens
    from sembench.live.engine_counters import EngineCounters
    from sembench.live.identity import RequestIdentity
    from sembench.live.openai_client import OpenAIClient

    if cache_salt and share_cache:
        raise UsageError("give --cache-salt or --share-cache, not both")
    encoder = load_tokenizer(flags.tokenizer)
    run = run_metadata(engine="gateway", manifest=None, run_id=flags.run_id, arm="single")
    compared = None if baseline is None else _rows_of(baseline)
    options = LiveTurns(
        run_id=run.run_id,
        max_tokens=max_tokens,
        live_answers=live_answers,
        send_tools=tools,
        cache_salt="" if share_cache else cache_salt or f"sembench-{run.run_id}",
        donor_wait_ms=donor_wait_ms,
    )

    async def go() -> list[TurnRow]:
        name = await live.model_named(model, engine="gateway", base_url=base_url)
        pages = EngineCounters(metrics_url or [EngineCounters.page_of(base_url)], api_key=api_key)
        caller = RequestIdentity(tenant=tenant, api_key=api_key)
        client = OpenAIClient(
            base_url=base_url, model=name, caller=caller, timeout_seconds=timeout_seconds
        )
        tokens = EndpointTokens(base_url=base_url, model=name, caller=caller)
        rows: list[TurnRow] = []
        try:
            counters = None if await pages.read() is None else pages
            with progress_bar() as bar:
                task = bar.add_task("Playing", total=None)
                async for row in live_turns(
                    flags.stories(),
                    client,
                    encoder,
                    flags.reuse(encoder),
                    options,
                    counters=counters,
                    tokens=tokens,
                ):
                    rows.append(row)
                    bar.advance(task)
        finally:
            await client.close()
            await pages.aclose()
            await tokens.aclose()
        return rows

    rows = asyncio.run(go())
    if rows and all(row.error is not None for row in rows):
        raise EndpointError(f"none of {len(rows)} turns was answered: {rows[-1].error}")
    config = live.recorded({**flags.values(), **own, "tokenizer": encoder.name})
    _finish(flags.output, run, config, rows, compared)


def _rows_of(path: Path) -> list[TurnRow]:
    data = read_json(path)
    if not isinstance(data, Mapping) or data.get("turns_version") != TURNS_VERSION:
        raise ResultError(f"{path}: not a result of run-turns ({TURNS_VERSION})")
    return [
        TurnRow.from_dict(row, where=f"{path}: requests[{index}]")
        for index, row in enumerate(data.get("requests", ()))
    ]


def _finish(
    output: Path,
    run: RunMetadata,
    config: Mapping[str, Any],
    rows: Sequence[TurnRow],
    baseline: Sequence[TurnRow] | None,
) -> None:
    result = {
        "turns_version": TURNS_VERSION,
        "created_at_utc": utc_now(),
        "run": run.to_dict(),
        "config": dict(config),
        "environment": environment(),
        "aggregate": summarise_turns(rows),
        "baseline": None if baseline is None else compare_turns(rows, baseline),
        "requests": [row.to_dict() for row in rows],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _show(result["aggregate"], result["baseline"], output)


_COLUMNS = (
    ("turns", "turns"),
    ("prompt", "prompt_tokens"),
    ("prefix", "prefix_cache_computes"),
    ("oracle", "oracle_computes"),
    ("planner", "planner_computes"),
    ("engine", "engine_computes"),
)


def _show(aggregate: Any, baseline: Any, output: Path) -> None:
    """Print computed tokens by kind of turn for the prefix cache, oracle, planner and engine."""
    shown = [(title, name) for title, name in _COLUMNS if aggregate.get(name) is not None]
    typer.echo(f"{'tokens computed':16}" + "".join(f"{title:>10}" for title, _ in shown))
    lines = [*aggregate["by_kind"].items(), ("all", aggregate)]
    for kind, sums in lines:
        cells = ["-" if sums[name] is None else str(sums[name]) for _, name in shown]
        typer.echo(f"{kind:16}" + "".join(f"{cell:>10}" for cell in cells))
    for name in ("oracle", "planner", "engine"):
        ratio = aggregate[f"{name}_against_prefix_cache"]
        if ratio is not None:
            typer.echo(f"{name} computes {ratio:.1%} of what a prefix cache computes")
    for label, value in (
        ("turns above the prefix cache", aggregate["turns_above_prefix_cache"]),
        ("answer recall", aggregate["answer_recall_mean"]),
        ("time to first token p50, ms", aggregate["ttft_ms_p50"]),
        ("errors", aggregate["errors"] or None),
        *((f"against the baseline: {name}", value) for name, value in (baseline or {}).items()),
    ):
        if value is not None:
            typer.echo(f"{label}: {value:.4g}")
    typer.echo(f"result: {output}")
