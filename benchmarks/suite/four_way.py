"""vLLM and SGLang, each plain and with SemBlend, on the same prompts: one command, one table.

    python -m benchmarks.suite.four_way --model models/semblend-reference-27m --lengths 1024

Starts the four engines one after another (or takes those of `--endpoint`). *moved*: a document
was served behind another instruction; *edited*: the served document states other facts. With
`--data`, also the documents of datasets. Four things stay apart: what the prefix cache served
(exact), what SemBlend reused and the engine confirmed (semantic), what was found and not loaded
(candidate), and what became of the answers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.suite import datasets, engines
from benchmarks.suite.endpoint import Endpoint, parser, run
from benchmarks.suite.engines import Arm
from benchmarks.suite.figures import Figures
from benchmarks.suite.pairs import Pair, add_reuse, add_speedup, add_time, confirmed
from benchmarks.suite.quality import Item, cases
from sembench import statistics
from sembench.errors import SemBenchError
from sembench.quality import answer_recall, states_value


async def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    flags = parser(__doc__ or "", endpoint=False)
    engines.add_flags(flags)
    datasets.add_flags(flags)
    chosen = flags.parse_args(arguments)
    engines.running(chosen)  # a wrong one is said before anything is started
    figures = Figures(benchmark="four_way", context={}, divider=": ")
    contexts: dict[str, Any] = {}
    baseline: dict[str, float] = {}
    failed: list[str] = []
    for arm in chosen.arms:
        try:
            with engines.served(arm, chosen) as url:
                chosen.base_url, chosen.backend = url, None
                endpoint = await Endpoint.open(_named(chosen))
                try:
                    contexts[arm] = endpoint.context(_data(chosen))
                    for name, items in cases(chosen, endpoint.fitting(chosen.lengths), facts=""):
                        pairs = [await _pair(endpoint, item) for item in items]
                        _add(figures, arm, name, items, pairs, baseline)
                finally:
                    await endpoint.close()
        except SemBenchError as error:
            print(f"{arm} was not measured: {error}", file=sys.stderr)
            failed.append(arm)
    figures.context = {
        "model": chosen.model,
        "mode": chosen.mode + (f", {chosen.policy}" if chosen.policy else ""),
        "data": _data(chosen),
        "not_measured": ", ".join(failed) or "none",
        **{
            f"{arm}: {name}": stated[name]
            for arm, stated in contexts.items()
            for name in ("backend", "cache_configuration", "hardware", "isolation")
        },
    }
    code = figures.show(as_json=chosen.json, output=chosen.output)
    return 2 if failed else code


def _named(flags: Any) -> Any:
    """The flags as an endpoint reads them: engines serve the model under its last name."""
    told = vars(flags) | {"model": None}
    return type(flags)(**told)


def _data(flags: Any) -> str:
    generated = "generated documents with facts"
    if flags.data is None and flags.hf_revision is None:
        return generated
    return f"{generated}; {datasets.said(flags)}"


async def _pair(endpoint: Endpoint, item: Item) -> Pair:
    await endpoint.empty()
    cold = await endpoint.ask(item.target, salt=endpoint.new_salt("cold"))
    await endpoint.empty()
    salt = endpoint.new_salt("warm")
    await endpoint.ask(item.donor, salt=salt, max_tokens=1)
    await endpoint.settle()
    return Pair(cold=cold, warm=await endpoint.ask(item.target, salt=salt))


def _add(
    figures: Figures,
    arm: Arm,
    name: str,
    items: Sequence[Item],
    pairs: Sequence[Pair],
    baseline: dict[str, float],
) -> None:
    """One case of one engine; `baseline` keeps the times of the first engine measured."""
    case = f"{arm}: {name}"
    said = confirmed(pairs)
    add_reuse(figures, case, pairs)
    add_time(figures, case, "cold_ttft", [p.cold for p in pairs], backend_confirmed=None)
    add_time(figures, case, "warm_ttft", [p.warm for p in pairs], backend_confirmed=said)
    add_speedup(figures, case, "speedup_over_own_cold", pairs)
    warm = [pair.warm.ttft_ms for pair in pairs if pair.warm.ttft_ms]
    middle = statistics.median(warm) if warm else None
    first = baseline.setdefault(name, middle) if middle else None
    shared: dict[str, Any] = {
        "context_tokens": figures.rows[-1].context_tokens,
        "backend_confirmed": said,
    }
    figures.add(
        case,
        "speedup_over_first_engine",
        first / middle if first and middle else None,
        "x",
        samples=len(warm),
        **shared,
    )
    same = [float(pair.warm.text == pair.cold.text) for pair in pairs]
    right = {
        which: [
            score
            for item, pair in zip(items, pairs, strict=True)
            if (score := answer_recall(getattr(pair, which).text, item.answers)) is not None
        ]
        for which in ("cold", "warm")
    }
    leaks = [
        float(states_value(pair.warm.text, item.leaked))
        for item, pair in zip(items, pairs, strict=True)
        if item.leaked
    ]
    for metric, values in (
        ("answer_as_cold", same),
        ("cold_accuracy", right["cold"]),
        ("warm_accuracy", right["warm"]),
        ("donor_fact_leak_rate", leaks),
    ):
        if values:
            mean = sum(values) / len(values)
            figures.add(case, metric, mean, "", samples=len(values), **shared)


if __name__ == "__main__":
    sys.exit(run(main(sys.argv[1:])))
