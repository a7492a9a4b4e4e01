"""The same document after several instructions: which worker answers, and what it reused.

python examples/fleet/where.py http://127.0.0.1:8080 [document.txt]
"""

import sys

import httpx

INSTRUCTIONS = (
    "Read the following and answer.",
    "You are a careful archivist. Use only what the text says.",
    "Answer in one word if you can, and in one sentence if you cannot.",
)
DOCUMENT = " ".join(
    f"Shelf {shelf} holds {shelf * 37 % 211} ledgers of the year {1600 + shelf}."
    for shelf in range(80)
)


def main() -> None:
    url = sys.argv[1]
    document = DOCUMENT
    if len(sys.argv) > 2:
        with open(sys.argv[2], encoding="utf-8") as file:
            document = file.read()
    for instruction in INSTRUCTIONS:
        body = {
            "model": "semblend-reference-27m",
            "messages": [
                {"role": "user", "content": f"{instruction}\n\n{document}\n\nWhat is on shelf 7?"}
            ],
            "max_tokens": 16,
        }
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)
        reply.raise_for_status()
        print(
            f"worker {reply.headers['x-semblend-worker']}, "
            f"placed by {reply.headers['x-semblend-placement']}, "
            f"{reply.headers.get('x-semblend-outcome', 'unknown')}: "
            f"{reply.headers.get('x-semblend-reused-tokens', '?')} tokens reused"
        )


if __name__ == "__main__":
    main()
