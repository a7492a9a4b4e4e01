"""Does semantic reuse pay, and do answers stay the same? Cold/warm pairs with gates.

    python -m benchmarks.suite.trtllm_semantic_validation \\
        --model Qwen/Qwen2.5-1.5B-Instruct --output results/trtllm-semblend.json \\
        --min-speedup 1.05 --min-rouge1 0.35 --min-token-f1 0.10

Every pair is one document after two instructions and questions. Its target is served cold (with a
fresh salt) and warm (with its donor's salt). Negative controls have a donor about something else.
Runs on TensorRT-LLM if installed; `--engine embedded` and `--engine vllm` run the same harness on
those. The JSON names the measured engine: a result of one engine says nothing about another.

Gates that are always on: the engine confirmed reuse in every pair, and in no control. Exit code 1
if a gate fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.suite.documents import case, document_of
from benchmarks.suite.figures import Figures
from benchmarks.suite.judging import LocalModel, judge, local_model
from benchmarks.suite.validation_engines import (
    ENGINES,
    Served,
    ValidationEngine,
    installed,
    open_engine,
)
from sembench.errors import SemBenchError
from sembench.quality import answer_recall, normalise_answer, rouge_l, token_f1
from semblend.core.errors import SemBlendError
from semblend.quality.texts.documents import DocumentWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target served cold and warm."""

    case: str
    negative_control: bool
    prompt: str
    expected: str
    cold: Served
    warm: Served

    @property
    def speedup(self) -> float:
        """Cold over warm time to first token."""
        return self.cold.ttft_ms / max(self.warm.ttft_ms, 1e-6)


def rouge1(output: str, reference: str) -> float:
    """F1 of shared words, counted with multiplicity (ROUGE-1)."""
    said, expected = normalise_answer(output).split(), normalise_answer(reference).split()
    if not said or not expected:
        return float(said == expected)
    common = sum((Counter(said) & Counter(expected)).values())
    return 2 * common / (len(said) + len(expected))


def main(arguments: Sequence[str]) -> int:
    """Run the harness; 0 if every gate holds, 1 if one fails, 2 if nothing could run."""
    flags = _parser().parse_args(arguments)
    try:
        scorer = local_model(flags.ppl_model)
        engine = open_engine(
            flags.engine, flags.model, policy=None if flags.certified else flags.policy
        )
        try:
            pairs = _serve_all(engine, flags)
        finally:
            engine.close()
        figures = _figures(engine, flags, pairs, scorer)
    except (SemBenchError, SemBlendError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return _show(engine, flags, pairs, figures)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="folder or hub name")
    add("--output", type=Path, help="file to write the JSON to")
    add("--engine", choices=("auto", *ENGINES), default="auto", help="auto: trtllm, else embedded")
    add("--min-speedup", type=float, help="minimum median cold/warm time to first token")
    add("--min-rouge1", type=float, help="minimum mean ROUGE-1 of warm against cold answers")
    add("--min-token-f1", type=float, help="minimum mean token F1 of warm against cold answers")
    add("--ppl-model", help="local model for comparing the answers' perplexity")
    add("--max-ppl-ratio", type=float, help="maximum mean perplexity ratio")
    add("--judge-command", help="reads {baseline, semblend} JSON on stdin, prints a score")
    add("--min-judge-score", type=float, help="minimum mean score of the judge")
    add("--policy", default="edit_safe", help="recompute policy; results are marked uncertified")
    add("--certified", action="store_true", help="run under the model's certificate instead")
    add("--pairs", type=int, default=4, help="cold/warm pairs")
    add("--negative-controls", type=int, default=2, help="pairs with an unrelated donor")
    add("--document-tokens", type=int, default=1024, help="approximate document length")
    add("--max-tokens", type=int, default=24, help="maximum tokens per answer")
    add("--seed", type=int, default=0)
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _serve_all(engine: ValidationEngine, flags: argparse.Namespace) -> list[Pair]:
    warm_up = case(document_of(DocumentWriter(flags.seed + 9_999), 64), instruction=0, fact=0)
    engine.cold(warm_up.text, "warm-up", 2)
    pairs = [_pair(engine, flags, number, control=False) for number in range(flags.pairs)]
    pairs += [
        _pair(engine, flags, number, control=True) for number in range(flags.negative_controls)
    ]
    return pairs


def _pair(
    engine: ValidationEngine, flags: argparse.Namespace, number: int, *, control: bool
) -> Pair:
    seed = flags.seed + number
    document = document_of(DocumentWriter(seed), flags.document_tokens)
    other = document_of(DocumentWriter(seed + 5_000), flags.document_tokens)
    donor = case(other if control else document, instruction=number, fact=number + 1)
    target = case(document, instruction=number + 1, fact=number)
    name = f"{'control' if control else 'pair'}-{number}"
    cold = engine.cold(target.text, f"{name}-cold", flags.max_tokens)
    engine.donor(donor.text, f"{name}-warm")
    warm = engine.warm(target.text, f"{name}-warm", flags.max_tokens)
    return Pair(
        case=name,
        negative_control=control,
        prompt=target.text,
        expected=target.answer,
        cold=cold,
        warm=warm,
    )


def _figures(
    engine: ValidationEngine,
    flags: argparse.Namespace,
    pairs: list[Pair],
    scorer: LocalModel | None,
) -> Figures:
    figures = Figures(
        benchmark="trtllm_semantic_validation", context=_context(engine, flags), command=_command()
    )
    positive = [pair for pair in pairs if not pair.negative_control]
    controls = [pair for pair in pairs if pair.negative_control]
    add = _adder(figures, positive)
    add("ttft_speedup", [pair.speedup for pair in positive], "x", at_least=flags.min_speedup)
    add("cold_ttft", [pair.cold.ttft_ms for pair in positive], "ms")
    add("warm_ttft", [pair.warm.ttft_ms for pair in positive], "ms")
    add("rouge1", [rouge1(p.warm.text, p.cold.text) for p in positive], at_least=flags.min_rouge1)
    add("rouge_l", [rouge_l(pair.warm.text, pair.cold.text) for pair in positive])
    overlaps = [token_f1(pair.warm.text, [pair.cold.text]) for pair in positive]
    add("token_f1", [one for one in overlaps if one is not None], at_least=flags.min_token_f1)
    add("same_answer", [float(pair.warm.text == pair.cold.text) for pair in positive])
    for arm in ("cold", "warm"):
        scores = [answer_recall(getattr(pair, arm).text, [pair.expected]) for pair in positive]
        add(f"{arm}_accuracy", [score for score in scores if score is not None])
    reused = [pair.warm.reused_tokens / pair.warm.prompt_tokens for pair in positive]
    add("confirmed_share", reused)
    add("pairs_confirmed", [float(share > 0) for share in reused], at_least=1.0)
    if scorer is not None:
        add("ppl_ratio", list(_ratios(scorer, positive)), at_most=flags.max_ppl_ratio)
    if flags.judge_command:
        scores_by_judge = [
            judge(flags.judge_command, baseline=pair.cold.text, semblend=pair.warm.text)
            for pair in positive
        ]
        add("judge_score", scores_by_judge, at_least=flags.min_judge_score)
    if controls:
        add_control = _adder(figures, controls, case="negative_controls")
        add_control("ttft_speedup", [pair.speedup for pair in controls], "x")
        leaked = [float(pair.warm.reused_tokens) for pair in controls]
        add_control("confirmed_tokens", leaked, "tokens", at_most=0.0)
    return figures


def _adder(figures: Figures, pairs: list[Pair], case: str = "pairs") -> Callable[..., None]:
    """Add one figure of these pairs: a median of times, a mean of everything else."""
    lengths = [pair.warm.prompt_tokens for pair in pairs]
    confirmed = any(pair.warm.reused_tokens for pair in pairs)

    def add(metric: str, values: list[float], unit: str = "", **target: float | None) -> None:
        of = statistics.median if "ttft" in metric else statistics.fmean
        figures.add(
            case,
            metric,
            of(values) if values else None,
            unit,
            context_tokens=float(statistics.median(lengths)) if lengths else None,
            samples=len(values),
            backend_confirmed=confirmed,
            **target,
        )

    return add


def _ratios(scorer: LocalModel, pairs: list[Pair]) -> Any:
    for pair in pairs:
        before = scorer.perplexity(pair.prompt, pair.cold.text)
        after = scorer.perplexity(pair.prompt, pair.warm.text)
        if before and after:
            yield after / before


def _context(engine: ValidationEngine, flags: argparse.Namespace) -> dict[str, Any]:
    measured = engine.name == "trtllm"
    return {
        "engine": engine.name,
        "engine_description": engine.description,
        "tensorrt_llm": (
            "measured here"
            if measured
            else f"NOT measured ({'' if installed('trtllm') else 'not '}installed here)"
        ),
        "model": flags.model,
        "policy": engine.policy,
        "certified": engine.certified,
        "data": f"generated documents of about {flags.document_tokens} tokens, seed {flags.seed}",
        "isolation": "a cache salt a pair and arm",
    }


def _command() -> str:
    import shlex

    return shlex.join(
        ["python", "-m", "benchmarks.suite.trtllm_semantic_validation", *sys.argv[1:]]
    )


def _show(
    engine: ValidationEngine, flags: argparse.Namespace, pairs: list[Pair], figures: Figures
) -> int:
    body = {
        **figures.to_dict(),
        "passed": not figures.failed,
        "failures": [
            f"{row.case} {row.metric} = {row.value} (target {row.target})"
            for row in figures.rows
            if row.ok is False
        ],
        "pairs": [{**asdict(pair), "speedup": pair.speedup} for pair in pairs],
    }
    if flags.output is not None:
        flags.output.parent.mkdir(parents=True, exist_ok=True)
        flags.output.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    if flags.json:
        print(json.dumps(body))
        return int(figures.failed)
    return figures.show(as_json=False, output=None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
