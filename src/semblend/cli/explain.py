"""`semblend explain`: show the spans, holes and reasons of a plan in colour."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semblend.core.errors import SemBlendError
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan
from semblend.core.settings import EmbedderKind, Settings
from semblend.pipeline import SemBlendPipeline
from semblend.planning.policies.base import policy_from_spec
from semblend.terminal.tokenizing import TokenisedText, tokenise

NAMESPACE = Namespace.of(model="explain")
STYLES = {
    "reused": "black on green3",
    "recomputed": "black on gold1",
    "hole": "white on deep_pink4",
    "tail": "dim",
}


def explain(
    target: Annotated[Path, typer.Argument(help="File with the new prompt ('-' reads stdin).")],
    donors: Annotated[list[Path], typer.Argument(help="Files with prompts already computed.")],
    tokenizer: Annotated[
        str,
        typer.Option(help="Folder with a tokenizer.json, or hub name; default: split into words."),
    ] = "",
    policy: Annotated[
        str, typer.Option(help="Recompute policy, for example none or span_head(8).")
    ] = "",
    min_prompt_tokens: Annotated[
        int, typer.Option(help="Skip the lookup for shorter prompts.")
    ] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    full: Annotated[bool, typer.Option(help="Print all text, including long runs.")] = False,
) -> None:
    """Explain which parts of TARGET could be reused from DONORS, and why the rest could not."""
    console = Console()
    try:
        plan, text = _make_plan(target, donors, tokenizer, policy, min_prompt_tokens)
    except (SemBlendError, OSError, UnicodeDecodeError) as error:
        Console(stderr=True).print(
            f"semblend explain: {error}", style="red", markup=False, soft_wrap=True
        )
        raise typer.Exit(2) from None
    if as_json:
        console.print(plan.to_json(), soft_wrap=True, highlight=False, markup=False)
        return
    console.print(_legend())
    console.print(paint(plan, text, full=full))
    if plan.spans:
        console.print(_spans_table(plan))
    console.print(_verdict(plan))


def _make_plan(
    target: Path, donors: list[Path], tokenizer: str, policy: str, min_prompt_tokens: int
) -> tuple[Plan, TokenisedText]:
    settings = Settings.from_env(
        embedder=EmbedderKind.NONE, allow_uncertified=True, min_prompt_tokens=min_prompt_tokens
    )
    if policy:
        policy_from_spec(policy)  # check it here: a plan would only say that it was refused
    with SemBlendPipeline(settings) as pipeline:
        for path in donors:
            tokens = tokenise(_read(path), tokenizer).tokens
            pipeline.register_donor(str(path), tokens, NAMESPACE)
        text = tokenise(_read(target), tokenizer)
        return pipeline.plan(text.tokens, NAMESPACE, policy=policy or None), text


def _read(path: Path) -> str:
    if str(path) == "-":
        return typer.get_text_stream("stdin").read()
    return path.read_text(encoding="utf-8")


def _runs(plan: Plan) -> list[tuple[int, int, str]]:
    """(start, end, kind) runs that cover the whole prompt, in order."""
    runs = [(span.target_start, span.target_end, "reused") for span in plan.copies]
    runs += [(hole.start, hole.end, "hole") for hole in plan.gaps]
    runs += [(run.start, run.end, "recomputed") for run in plan.recompute]
    runs.append((plan.end, plan.prompt_tokens, "tail"))
    return sorted(run for run in runs if run[0] < run[1])


def paint(plan: Plan, text: TokenisedText, *, full: bool) -> Text:
    """Colour the prompt by what happens to each token. Long runs are shortened in the middle."""
    picture = Text()
    for start, end, kind in _runs(plan):
        pieces = text.pieces[start:end]
        if not full and len(pieces) > 48:
            middle = f" … {len(pieces) - 32} tokens … "
            pieces = [*pieces[:16], middle, *pieces[-16:]]
        picture.append("".join(pieces), style=STYLES[kind])
    return picture


def _legend() -> Text:
    legend = Text()
    words = {
        "reused": "reused from a donor",
        "recomputed": "reusable, computed for quality",
        "hole": "new, computed",
        "tail": "tail, computed",
    }
    for kind, meaning in words.items():
        legend.append(f" {meaning} ", style=STYLES[kind])
        legend.append("  ")
    return legend


def _spans_table(plan: Plan) -> Table:
    table = Table("target", "donor", "from", "moved by", "tokens", "kind", title="spans")
    for span in plan.spans:
        kind = span.kind.value
        if span.edit_tokens:
            kind += f" of {span.edit_tokens} tokens"
        table.add_row(
            f"[{span.target_start}, {span.target_end})".replace("[", r"\["),
            span.donor_id,
            f"[{span.donor_start}, {span.donor_end})".replace("[", r"\["),
            f"{span.delta:+d}",
            str(span.length),
            kind,
        )
    return table


def _verdict(plan: Plan) -> Text:
    computed = plan.prompt_tokens - plan.reused_tokens
    lines = Text()
    lines.append(
        f"{plan.prompt_tokens} tokens: {plan.reused_tokens} reused, {computed} computed "
        f"({plan.hole_tokens} in holes, {plan.recomputed_tokens} for quality by {plan.policy}, "
        f"{plan.tail_tokens} in the tail)\n"
    )
    if plan.executable:
        lines.append(
            f"estimated prefill {plan.cost.speedup:.1f}x faster; found in "
            f"{plan.evidence.lookup_ms:.2f} ms",
            style="bold green",
        )
    else:
        reason = plan.reason.value if plan.reason else "nothing to reuse"
        lines.append(f"not reused: {reason}: {plan.detail}", style="bold yellow")
    return lines
