"""Two questions about one document behind different instructions; what the second one reused.

    python examples/vllm/ask_twice.py http://localhost:8000 MODEL document.txt

The server runs one of the segmented configurations beside this file.
"""

import sys
import time

import openai

QUESTIONS = (
    ("Read the report and answer in one sentence.", "What is it about?"),
    ("You are a careful analyst. Use only what the text says.", "What should be done next?"),
)


def main() -> None:
    url, model, path = sys.argv[1:4]
    with open(path, encoding="utf-8") as file:
        document = file.read()
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    for instruction, question in QUESTIONS:
        started = time.perf_counter()
        answer = client.completions.create(
            model=model,
            prompt=f"{instruction}\n\n{document}\n\n{question}\n",
            max_tokens=32,
            temperature=0.0,
            # Needed where the server says "reuse": "opt_in".
            extra_body={"kv_transfer_params": {"semblend": {"reuse": True}}},
        )
        seconds = time.perf_counter() - started
        report = answer.kv_transfer_params["semblend"]
        print(f"{seconds:.2f} s, {report['reused_tokens']} of {report['prompt_tokens']} reused")
        print(answer.choices[0].text.strip())


if __name__ == "__main__":
    main()
