"""Ask two questions about one document with OpenAI's own client, and see what was reused.

semblend serve models/semblend-reference-27m
python examples/openai_client.py
"""

import sys

import openai

RULES = " ".join(f"Rule {number}: answer in few words." for number in range(1, 16))
SHELVES = " ".join(f"Shelf {number} holds the blue basket." for number in range(1, 151))


def ask(client: openai.OpenAI, model: str, instruction: str, question: str) -> None:
    stream = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": instruction},
            {"role": "user", "content": f"{SHELVES}\n\nQuestion: {question}"},
        ],
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    report = chunk.model_extra["semblend"]
    exact, reused, computed = (
        report[f"{source}_tokens"] for source in ("exact", "reused", "computed")
    )
    print(
        f"\n  {report['outcome']}: {exact} exact, {reused} reused, {computed} computed tokens; "
        f"first token after {report['times']['ttft_ms']:.0f} ms"
    )


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    with openai.OpenAI(base_url=url, api_key="unused") as client:
        model = client.models.list().data[0].id
        ask(client, model, "Read the list and answer.", "What does shelf 7 hold?")
        ask(client, model, RULES, "What does shelf 9 hold?")


if __name__ == "__main__":
    main()
