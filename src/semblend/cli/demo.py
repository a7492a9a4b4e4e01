"""`semblend demo`: reuse end to end with the bundled model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from semblend.core.errors import SemBlendError
from semblend.core.outcomes import Outcome
from semblend.core.settings import EmbedderKind, Settings
from semblend.demo.comparison import Comparison, DemoAnswer
from semblend.demo.demo_page import write_report
from semblend.demo.scenarios import Demo, DemoPrompt, Scenario, make_demo
from semblend.engine.api import FinishReason, GenerationRequest, SamplingParams
from semblend.engine.options import EngineOptions
from semblend.terminal.progress import advancing

if TYPE_CHECKING:
    from semblend.engine.engine import EmbeddedEngine

ANSWER_TOKENS = 12


def demo(
    model: Annotated[
        str, typer.Option(help="Model folder or hub name.")
    ] = "models/semblend-reference-27m",
    report: Annotated[Path, typer.Option(help="File for the HTML report.")] = Path(
        "results/demo.html"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Runs per arm; the fastest counts.")] = 2,
    paragraphs: Annotated[int, typer.Option(help="Paragraphs per document.", min=4, max=1000)] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the documents.")] = 7,
) -> None:
    """Read a few documents, then ask about them again, cold and warm, side by side."""
    console = Console()
    comparisons = _run(model, make_demo(seed, paragraphs), rounds, console)
    console.print(_table(comparisons))
    console.print(
        "Reused and computed tokens add up to the prompt. Tokens in brackets were reusable but "
        "computed for quality. 'same': the warm answer equals the cold one. 'donor's fact': the "
        "answer took a fact from the donor, which must never happen. The naive row is an "
        "experiment without a certificate: it shows why policies recompute after edits. "
        f"All other rows: {standing_of(comparisons)}.\n"
    )
    write_report(report, comparisons, model=model, standing=standing_of(comparisons))
    console.print(f"report: [bold]{report}[/]")
    wrong = [c for c in comparisons if c.scenario.policy is None and c.agreement == "donor's fact"]
    if wrong:
        console.print("[bold red]a donor's fact reached an answer under the default policy[/]")
        raise typer.Exit(1)


def standing_of(comparisons: list[Comparison]) -> str:
    """Say whether reuse was covered by the model's certificate."""
    reused = [
        item.warm.report
        for item in comparisons
        if item.scenario.policy is None and item.warm.report.reused_tokens
    ]
    if reused and all(report.certified for report in reused):
        return f"under the model's quality certificate, {reused[0].policy}"
    return "no certificate; every warm answer is marked uncertified"


def _run(model: str, scenes: Demo, rounds: int, console: Console) -> list[Comparison]:
    from semblend.engine.engine import EmbeddedEngine

    with console.status(escape(f"loading {model}")):
        engine = EmbeddedEngine.load(
            model,
            options=EngineOptions(),
            settings=Settings(embedder=EmbedderKind.NONE, allow_uncertified=True),
        )
    # Warm requests take a fraction of the time, so progress counts cold ones only.
    prefills = len(scenes.read) + rounds * len(scenes.scenarios)
    comparisons = []
    with engine, advancing("demo, cold prefills", prefills, console) as advance:
        for number, prompt in enumerate(scenes.read):
            _ask(engine, prompt, f"read-{number}", donate=True)
            advance(1)
        engine.donors.wait()
        for scenario in scenes.scenarios:
            cold = []
            for round_ in range(rounds):
                cold.append(_scene(engine, scenario, reuse=False, round_=round_))
                advance(1)
            warm = [_scene(engine, scenario, reuse=True, round_=i) for i in range(rounds)]
            comparisons.append(
                Comparison(scenario=scenario, cold=_fastest(cold), warm=_fastest(warm))
            )
    return comparisons


def _scene(engine: EmbeddedEngine, scenario: Scenario, *, reuse: bool, round_: int) -> DemoAnswer:
    # Flush, so that only SemBlend's reuse differs between the arms.
    engine.flush_prefix_cache()
    return _ask(
        engine,
        scenario.prompt,
        f"{scenario.name}-{'warm' if reuse else 'cold'}-{round_}",
        reuse=reuse,
        tenant=scenario.tenant,
        policy=scenario.policy,
    )


def _ask(
    engine: EmbeddedEngine,
    prompt: DemoPrompt,
    name: str,
    *,
    reuse: bool = True,
    donate: bool = False,
    tenant: str = "demo",
    policy: str | None = None,
) -> DemoAnswer:
    text = engine.tokenizer.apply_chat_template(
        prompt.messages, add_generation_prompt=True, tokenize=False
    )
    tokens = engine.tokenizer(text, add_special_tokens=False)["input_ids"]
    handle = engine.submit(
        GenerationRequest(
            request_id=name,
            tokens=np.asarray(tokens, dtype=np.int32),
            namespace=engine.namespace(tenant=tenant),
            sampling=SamplingParams(max_tokens=ANSWER_TOKENS),
            reuse=reuse,
            donate=donate,
            policy=policy,
        )
    )
    result = handle.result()
    if result.reason is FinishReason.ERROR:
        raise SemBlendError(f"request {name!r} failed: {result.error}")
    return DemoAnswer(text=result.text.strip(), report=result.report)


def _fastest(answers: list[DemoAnswer]) -> DemoAnswer:
    return min(answers, key=lambda answer: answer.report.ttft_ms)


def _table(comparisons: list[Comparison]) -> Table:
    table = Table(
        title="time to first token, cold and warm",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("scenario", no_wrap=True)
    for column in ("cold", "warm", "faster", "reused", "computed"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("answer", no_wrap=True)
    styles = {"same": "green", "differs": "yellow", "donor's fact": "bold red"}
    for item in comparisons:
        cold, warm = item.cold.report, item.warm.report
        reused = warm.outcome is Outcome.MATERIALISED and item.scenario.policy is None
        recomputed = f" ({warm.recomputed_tokens})" if warm.recomputed_tokens else ""
        table.add_row(
            item.scenario.name,
            f"{cold.ttft_ms:.0f} ms",
            f"{warm.ttft_ms:.0f} ms",
            f"[bold]{item.ratio:.1f}x[/]" if reused else "[dim]–[/]",
            str(warm.reused_tokens),
            f"{warm.computed_tokens}{recomputed}",
            f"[{styles[item.agreement]}]{item.agreement}[/]",
        )
    return table
