"""A document after another instruction, served as a salted ladder over `LLM.generate_async`.

    python examples/trtllm/ladder.py MODEL document.txt

Needs a machine with TensorRT-LLM; see docs/trtllm.md for what was run and what was not.
"""

import asyncio
import json
import os
import sys
import tempfile

from semblend.integration.ladder_socket import DeskClient
from semblend.integration.trtllm.ladder_client import LadderLLM
from semblend.integration.trtllm.launcher import connector_config
from semblend.integration.trtllm.options import VARIABLE


async def main() -> None:
    model, path = sys.argv[1:3]
    socket = os.path.join(tempfile.mkdtemp(), "ladder.sock")
    os.environ[VARIABLE] = json.dumps(
        {"mode": "segmented_experimental", "min_prompt_tokens": 64, "ladder_socket": socket}
    )
    from tensorrt_llm import LLM, SamplingParams

    llm = LLM(model=model, kv_connector_config=connector_config())
    tokenizer = getattr(llm.tokenizer, "tokenizer", llm.tokenizer)
    with open(path, encoding="utf-8") as file:
        document = file.read()
    first = tokenizer(f"Summarise.\n\n{document}\n\nIn one sentence:")["input_ids"]
    second = tokenizer(f"Answer briefly.\n\n{document}\n\nWhat comes next?")["input_ids"]
    await llm.generate_async(first, SamplingParams(max_tokens=32))  # becomes a donor
    ladder = LadderLLM(llm, DeskClient(socket))
    answer = await ladder.generate(second, SamplingParams(max_tokens=32))
    print(answer.output.outputs[0].text.strip())
    print(answer.report)


if __name__ == "__main__":
    asyncio.run(main())
