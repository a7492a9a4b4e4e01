"""The public name of SemBlend's vLLM connector. Re-exports `semblend.integration.vllm` only."""
