"""The same, staged: the ladder uses only vLLM's public API and needs no worker class.

    python examples/vllm/ladder.py http://localhost:8000 MODEL document.txt

The server runs staged_kv_transfer_config.json and has seen the document before.
"""

import asyncio
import sys

import httpx

from semblend.integration.vllm.ladder_client import LadderClient


async def main() -> None:
    url, model, path = sys.argv[1:4]
    with open(path, encoding="utf-8") as file:
        prompt = f"Answer briefly.\n\n{file.read()}\n\nWhat should be done next?\n"
    asked = httpx.post(f"{url}/tokenize", json={"model": model, "prompt": prompt})
    async with LadderClient(url, model) as ladder:
        answer = await ladder.complete(asked.json()["tokens"], max_tokens=32, temperature=0.0)
    print(answer["choices"][0]["text"].strip())
    print(answer["kv_transfer_params"]["semblend"].get("ladder", "nothing to reuse"))


if __name__ == "__main__":
    asyncio.run(main())
