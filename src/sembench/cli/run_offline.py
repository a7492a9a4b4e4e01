"""``sembench run-offline``: what exact caches and planners would reuse, without an engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sembench.errors import ResultError, UsageError
from sembench.live.replay import Arm
from sembench.manifests.files import count_items, read_manifest
from sembench.offline import ENGINE, OfflineRun
from sembench.planners import PlannerSettings, make_planner
from sembench.progress import track
from sembench.provenance import environment, run_config, run_metadata
from sembench.result_writer import ResultWriter
from sembench.terminal import live_options as live
from sembench.terminal.shared_options import BlockSize, Manifest, MaxItems, TokenizerName
from sembench.tokenizers import load_tokenizer

_SHOWN = (
    "requests",
    "errors",
    "total_blocks",
    "exact_block_hit_rate",
    "semantic_candidate_block_rate",
    "semantic_eligible_block_rate",
    "semantic_eligible_lift",
    "planned_mismatched_tokens",
    "negative_control_requests",
    "negative_control_semantic_eligible_rate",
)


def run_offline(
    manifest: Manifest,
    output: Annotated[Path, typer.Option(help="Result JSON to write.")],
    block_size: BlockSize = 16,
    tokenizer: TokenizerName = None,
    planner: Annotated[
        str,
        typer.Option(help="semblend, oracle, exact-block, none, or an adapter as module:Class."),
    ] = "semblend",
    planner_option: Annotated[
        list[str] | None, typer.Option(help="key=value for the planner; repeatable.")
    ] = None,
    shared_donors: Annotated[
        int,
        typer.Option(min=0, help="How many donors of earlier items to keep, newest first."),
    ] = 0,
    max_items: MaxItems = None,
    semblend_path: Annotated[
        str | None, typer.Option(help="Source folder of another SemBlend to measure.")
    ] = None,
    semblend_embedder: Annotated[
        str, typer.Option(help="Embedder of the SemBlend planner; used with fuzzy_chunks only.")
    ] = "jaccard",
    semblend_min_similarity: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Ignore donors less similar than this.")
    ] = 0.0,
    semblend_min_reuse_ratio: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the prompt a plan must cover.")
    ] = 0.25,
    disable_multi_donor: Annotated[
        bool, typer.Option("--disable-multi-donor", help="Use spans of one donor only.")
    ] = False,
    run_id: live.RunId = None,
    arm: live.ArmOption = Arm.SINGLE,
    backend_id: live.BackendId = None,
    baseline_id: live.BaselineId = None,
    engine_version: live.EngineVersion = None,
) -> None:
    """Measure exact-block hits and a planner's proposals over a manifest."""
    config = run_config(locals())
    words = load_tokenizer(tokenizer)
    options = _options(planner_option or [])
    if planner == "semblend":
        options = {
            "semblend_path": semblend_path,
            "semblend_embedder": semblend_embedder,
            "semblend_min_similarity": semblend_min_similarity,
            "semblend_min_reuse_ratio": semblend_min_reuse_ratio,
            "disable_multi_donor": disable_multi_donor,
            **options,
        }
    settings = PlannerSettings(block_size=block_size, tokenizer=words.name, options=options)
    make = None if planner == "none" else partial(make_planner, planner, settings)
    run = OfflineRun(
        tokenizer=words, block_size=block_size, make_planner=make, shared_donors=shared_donors
    )
    total = count_items(manifest, max_items=max_items)
    if not total:
        raise ResultError(f"{manifest}: has no items")
    metadata = run_metadata(
        engine=ENGINE,
        manifest=manifest,
        run_id=run_id,
        arm=arm,
        engine_version=engine_version,
        backend_id=backend_id,
        baseline_id=baseline_id,
    )
    config |= {
        "tokenizer": words.name,
        "planner_described": None if make is None else dict(make().describe()),
    }
    with ResultWriter(output, run=metadata, config=config, environment=environment()) as writer:
        items = read_manifest(manifest, max_items=max_items)
        for row in run.rows(track(items, description="planning", total=total)):
            writer.add(row)
        head = writer.finish()
    aggregate = head["aggregate"]
    typer.echo(f"{output}: {total} requests")
    for name in _SHOWN:
        typer.echo(f"  {name}: {_shown(aggregate[name])}")


def _options(pairs: list[str]) -> dict[str, Any]:
    options = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"--planner-option: expected key=value, got {pair!r}")
        options[name] = value
    return options


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
