"""Asks about one document twice, after different instructions; prints both times to first token.

    python examples/vllm/ask_twice.py http://localhost:8000 [DOCUMENT.txt]

The server runs one of the segmented configurations in this folder. docs/vllm-cpu.md shows how to
start one on a laptop.
"""

import re
import sys
import time
from pathlib import Path

import httpx

QUESTIONS = (
    ("Read the report and answer in one sentence.", "What is it about?"),
    ("You are a careful analyst. Use only what the text says.", "What should be done next?"),
)
TOKENS = re.compile(r'^vllm:semblend_tokens_total\{.*source="(\w+)".*\} (\S+)$', re.MULTILINE)


def report(seed: int) -> str:
    """A text of about 3,000 tokens; another seed makes another text."""
    days = range(seed % 1000, seed % 1000 + 90)
    return " ".join(
        f"On day {day} the crew of the survey ship logged {day * seed % 91} soundings, repaired "
        f"winch number {day * seed % 7}, and sent the samples of trench {day * seed % 29} ashore."
        for day in days
    )


def first_token_s(client: httpx.Client, model: str, prompt: str) -> float:
    """Seconds from sending the prompt to the first streamed token."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 8,
        "temperature": 0.0,
        "stream": True,
        # Needed if the server sets "reuse": "opt_in".
        "kv_transfer_params": {"semblend": {"reuse": True}},
    }
    started, first = time.perf_counter(), 0.0
    with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {") and not first:
                first = time.perf_counter() - started
    return first


def token_counts(client: httpx.Client) -> dict[str, float]:
    """Prompt tokens of all requests so far by source, as confirmed by the engine."""
    counts: dict[str, float] = {}
    for source, value in TOKENS.findall(client.get("/metrics").text):
        counts[source] = counts.get(source, 0.0) + float(value)
    return counts


def main() -> None:
    url, *rest = sys.argv[1:]
    seed = int(time.time())
    document = Path(rest[0]).read_text(encoding="utf-8") if rest else report(seed)
    with httpx.Client(base_url=url, timeout=600) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        # Another text first: the first cold and the first reused prompt pay for memory and threads.
        other = report(seed + 1)[: len(document)]
        for instruction, question in QUESTIONS:
            first_token_s(client, model, f"{instruction}\n\n{other}\n\n{question}\n")
            time.sleep(1.0)
        for instruction, question in QUESTIONS:
            before = token_counts(client)
            seconds = first_token_s(client, model, f"{instruction}\n\n{document}\n\n{question}\n")
            time.sleep(1.0)  # The donor is stored, and the counts appear, after the answer.
            after = token_counts(client)
            grown = {source: after[source] - before.get(source, 0.0) for source in sorted(after)}
            counts = ", ".join(f"{tokens:.0f} {source}" for source, tokens in grown.items())
            print(f"first token after {seconds * 1000:5.0f} ms: {counts}")


if __name__ == "__main__":
    main()
