"""Chats over a document and agents that compact their history, turn by turn.

    PYTHONPATH=src:. python -m benchmarks.conversations --json

Counts the prompt tokens that each turn computes, next to the same engine with only its prefix
cache. The chat reads a document that another conversation has already read, and asks ten
questions about it. The agent reads files until its history has 6,000 tokens, has it summarized,
continues with the summary and the end of the history, and does so twice; every third file is one
it has read before. Each arm continues with its own answers. A turn is compared with what a prefix
cache computes for the very same prompt, a whole run with the other arm's. Tokens that promotion
computes in idle steps are a separate row: they belong to no turn, and they are not free.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.core.chain import common_prefix
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.engine.api import GenerationRequest, SamplingParams
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.handle import GenerationResult
from semblend.engine.model import LoadedModel, load_model
from semblend.engine.options import EngineOptions
from semblend.quality.texts.documents import INSTRUCTIONS, Document, DocumentWriter

MODEL = "models/semblend-reference-27m"
SYSTEM = "You are an agent. " + " ".join(INSTRUCTIONS)
Messages = list[dict[str, str]]
ARMS = ("prefix cache", "semblend", "semblend, never idle")


def make_engine(model: LoadedModel, arm: str) -> EmbeddedEngine:
    """One arm: the same engine, with the prefix cache alone or with everything."""
    return EmbeddedEngine(
        model,
        options=EngineOptions(promotion_tokens=0 if arm.endswith("never idle") else 128),
        settings=Settings(
            embedder=EmbedderKind.NONE, enabled=arm != "prefix cache", shadow_rate=0.0
        ),
    )


@dataclass
class Talk:
    """One engine, its conversations, and what their turns computed."""

    engine: EmbeddedEngine
    serial: int = 0
    computed: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    """What the prefix cache alone computes for the same prompts after the same answers."""
    past: list[TokenArray] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)

    def ask(self, messages: Messages, *, tokens: int, full: bool = False) -> GenerationResult:
        """One turn; `full` generates all `tokens`, whatever the model would say."""
        self.serial += 1
        tokenizer = self.engine.tokenizer
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        prompt = np.asarray(ids, dtype=np.int32)
        size = self.engine.options.page_size
        common = max((common_prefix(prompt[:-1], known) for known in self.past), default=0)
        self.cached.append(len(prompt) - common // size * size)
        result = self.engine.submit(
            GenerationRequest(
                request_id=f"r{self.serial}",
                tokens=prompt,
                namespace=self.engine.namespace(),
                sampling=SamplingParams(max_tokens=tokens, ignore_eos=full),
            )
        ).result()
        self.computed.append(result.report.computed_tokens)
        said = np.asarray(result.token_ids[:-1], dtype=np.int32)  # the last one has no K/V
        self.past.append(np.concatenate((prompt, said)))
        return result

    def settle(self) -> None:
        """An idle moment: donors are stored and chains promoted."""
        self.engine.donors.wait()
        promotion = self.engine.promotion
        while promotion is not None and promotion.waiting:
            self.engine._wake()
            time.sleep(0.005)
        self.engine.donors.wait()


def chat(talk: Talk, seed: int, *, length: int, turns: int) -> None:
    """Ten questions about a document that someone else has read."""
    writer = DocumentWriter(seed)
    document = writer.document(paragraphs=max(2, length // 150), sentences=8, facts=turns + 1)
    *asked, read = document.facts
    talk.ask(_question(document, INSTRUCTIONS[0], read.question), tokens=12)
    talk.settle()
    talk.computed.clear()
    talk.cached.clear()
    messages = _question(document, INSTRUCTIONS[1], asked[0].question)
    for fact, following in zip(asked, [*asked[1:], None], strict=True):
        answer = talk.ask(messages, tokens=12).text
        talk.right.append(fact.value in answer)
        talk.settle()
        messages = [*messages, {"role": "assistant", "content": answer}]
        if following is not None:
            messages.append({"role": "user", "content": f"Question: {following.question}"})


def _question(document: Document, instruction: str, question: str) -> Messages:
    content = f"{instruction}\n\n{document.text}\n\nQuestion: {question}"
    return [{"role": "user", "content": content}]


def agent(talk: Talk, seed: int, *, threshold: int, compactions: int) -> list[str]:
    """A tool loop with compaction; returns what each turn was."""
    files = list(_files(seed))
    order = _reads(len(files))
    messages: Messages = [{"role": "system", "content": SYSTEM}]
    kinds: list[str] = []
    while compactions >= 0:
        number = next(order)
        messages.append({"role": "user", "content": f"File {number}:\n{files[number]}"})
        result = talk.ask(messages, tokens=24, full=True)
        kinds.append("step")
        messages.append({"role": "assistant", "content": result.text})
        talk.settle()
        if result.report.prompt_tokens < threshold:
            continue
        compactions -= 1
        if compactions < 0:
            break
        asked = {"role": "user", "content": "Summarise what you have read and done so far."}
        summary = talk.ask([*messages, asked], tokens=96, full=True).text
        kinds.append("summary")
        talk.settle()
        kept = messages[1 + (len(messages) - 1) // 4 * 2 :]
        told = {"role": "user", "content": f"Summary of the work so far:\n{summary}"}
        messages = [messages[0], told, {"role": "assistant", "content": "Understood."}, *kept]
    return kinds


def _files(seed: int) -> Iterator[str]:
    writer = DocumentWriter(seed)
    for _ in range(40):
        yield writer.document(paragraphs=3, sentences=8, facts=2).text


def _reads(files: int) -> Iterator[int]:
    """Which file to read at each step: new ones, and every third time an old one."""
    new = 0
    for step in range(10_000):
        if step % 3 == 2 and new > 4:
            yield (step * 7) % (new - 3)
        else:
            yield new % files
            new += 1


def measure_chat(report: BenchmarkReport, model: LoadedModel, flags: argparse.Namespace) -> None:
    """Per turn: what is computed relative to the prefix cache, and whether answers are right."""
    turns = flags.turns
    computed = {arm: np.zeros((flags.conversations, turns)) for arm in ARMS}
    cached = {arm: np.zeros((flags.conversations, turns)) for arm in ARMS}
    right = dict.fromkeys(ARMS, 0.0)
    for arm in ARMS:
        with make_engine(model, arm) as engine:
            for number in range(flags.conversations):
                talk = Talk(engine, serial=1000 * number)
                chat(talk, flags.seed + number, length=flags.length, turns=turns)
                computed[arm][number] = talk.computed
                cached[arm][number] = talk.cached
                right[arm] += sum(talk.right) / (turns * flags.conversations)
            _promoted(report, f"chat, {arm}", engine)
    base = computed["prefix cache"]
    for arm in ARMS[1:]:
        case = f"chat, {arm}"
        for turn in range(turns):
            name = f"computed tokens, turn {turn + 1}"
            report.add(case, name, float(computed[arm][:, turn].mean()), "tokens")
        worst = float((computed[arm] / cached[arm]).max())
        report.add(case, "worst turn against the prefix cache", worst, "ratio", at_most=1.0)
        total = float(computed[arm].sum() / base.sum())
        report.add(case, "all turns against the prefix cache", total, "ratio", at_most=1.0)
        lost = right["prefix cache"] - right[arm]
        report.add(case, "right answers lost against cold", 100 * lost, "%", at_most=1.0)
    for turn in range(turns):
        mean = float(base[:, turn].mean())
        report.add("chat, prefix cache", f"computed tokens, turn {turn + 1}", mean, "tokens")
    report.add("chat, prefix cache", "right answers", 100 * right["prefix cache"], "%")


def measure_agent(report: BenchmarkReport, model: LoadedModel, flags: argparse.Namespace) -> None:
    """A whole run with compactions, and its worst turn."""
    talks: dict[str, Talk] = {}
    for arm in ARMS[:2]:
        with make_engine(model, arm) as engine:
            talks[arm] = Talk(engine)
            kinds = agent(talks[arm], flags.seed, threshold=flags.history, compactions=2)
            _promoted(report, f"agent, {arm}", engine)
    base, mine = talks["prefix cache"].computed, talks["semblend"].computed
    cached = talks["semblend"].cached
    case = "agent, two compactions"
    report.add(case, "turns", len(base), "turns")
    report.add(case, "computed by the prefix cache", sum(base), "tokens")
    report.add(case, "computed", sum(mine), "tokens")
    worst = max(one / other for one, other in zip(mine, cached, strict=True))
    report.add(case, "worst turn against the prefix cache", worst, "ratio", at_most=1.0)
    total = sum(mine) / sum(base)
    report.add(case, "whole run against the prefix cache", total, "ratio", at_most=0.6)
    after = [at + 1 for at, kind in enumerate(kinds[:-1]) if kind == "summary"]
    for number, at in enumerate(after, start=1):
        name = f"first prompt behind compaction {number}"
        report.add(case, f"{name}, against the prefix cache", mine[at] / cached[at], "ratio")


def _promoted(report: BenchmarkReport, case: str, engine: EmbeddedEngine) -> None:
    stats = engine.stats()
    report.add(case, "computed in idle steps", stats.promoted_tokens, "tokens")
    cap = engine.options.chain_share * stats.pool_pages * engine.pool.page_bytes
    report.add(case, "memory of chains", stats.chain_bytes / cap, "of their cap", at_most=1.0)


def main(arguments: list[str]) -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--json", action="store_true")
    flags.add_argument("--only", choices=("chat", "agent"))
    flags.add_argument("--conversations", type=int, default=4)
    flags.add_argument("--turns", type=int, default=10)
    flags.add_argument("--length", type=int, default=1000, help="tokens of a chat's document")
    flags.add_argument("--history", type=int, default=6000, help="tokens that are compacted")
    flags.add_argument("--seed", type=int, default=0)
    chosen = flags.parse_args(arguments)
    torch.set_num_threads(1)
    model = load_model(MODEL, device="cpu", dtype="float32")
    command = "python -m benchmarks.conversations " + " ".join(arguments)
    report = BenchmarkReport("conversations", command=command.strip())
    if chosen.only != "agent":
        measure_chat(report, model, chosen)
    if chosen.only != "chat":
        measure_agent(report, model, chosen)
    report.show(as_json=chosen.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
