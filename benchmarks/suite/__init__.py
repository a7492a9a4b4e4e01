"""The tables from the docs, each by one command, on any OpenAI-compatible engine.

    python -m benchmarks.suite.ttft_by_context    --base-url http://localhost:8000
    python -m benchmarks.suite.workloads          --base-url …   datasets and conversation logs
    python -m benchmarks.suite.multi_turn         --base-url …   dialogue, turn by turn
    python -m benchmarks.suite.instruction_change --base-url …   one document, other instructions
    python -m benchmarks.suite.quality            --base-url …   perplexity ratio, judged quality
    python -m benchmarks.suite.similarity         --base-url …   hit rate by cosine to the nearest
    python -m benchmarks.suite.four_way           --model …      vLLM and SGLang, plain and with us

Lengths are 4K to 32K tokens by default, as far as the model has room; `--lengths`, `--samples`
and `--data` choose others. Every request of a comparison is isolated by a cache salt (or
`--reset-url`), and reuse counts only where the backend confirms it.
"""
