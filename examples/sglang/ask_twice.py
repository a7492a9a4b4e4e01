"""Asks two questions about one document after different instructions; shows the reuse.

    python examples/sglang/ask_twice.py http://localhost:8000 document.txt

Start the server with MODE=segmented_experimental examples/sglang/serve.sh MODEL.
"""

import sys
import time

import httpx

QUESTIONS = (
    ("Read the report and answer in one sentence.", "What is it about?"),
    ("You are a careful analyst. Use only what the text says.", "What should be done next?"),
)


def main() -> None:
    url, path = sys.argv[1:3]
    with open(path, encoding="utf-8") as file:
        document = file.read()
    for instruction, question in QUESTIONS:
        started = time.perf_counter()
        answer = httpx.post(
            f"{url}/generate",
            json={
                "text": f"{instruction}\n\n{document}\n\n{question}\n",
                "sampling_params": {"max_new_tokens": 32, "temperature": 0},
                # Requests with another key share nothing with this one.
                "extra_key": "ask-twice",
            },
            timeout=600,
        ).json()
        seconds = time.perf_counter() - started
        (report,) = answer["meta_info"]["semblend"]
        print(f"{seconds:.2f} s, {report['outcome']}: ", end="")
        print(f"{report['reused_tokens']} of {report['prompt_tokens']} tokens reused")
        print(answer["text"].strip())


if __name__ == "__main__":
    main()
