"""The mock engine's Prometheus page, under the names vLLM uses."""

from __future__ import annotations

from dataclasses import dataclass

from sembench.mock_engine.engine import AdmittedRequest


@dataclass(slots=True)
class Counters:
    """Totals since the start, of what really happened rather than what was reported."""

    requests: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    exact_tokens: int = 0
    reused_tokens: int = 0

    def record(self, admitted: AdmittedRequest) -> None:
        self.requests += 1
        self.prompt_tokens += admitted.prompt_tokens
        self.exact_tokens += admitted.logged.exact_tokens
        self.reused_tokens += admitted.logged.reused_tokens

    def page(self, model: str) -> str:
        """The page in Prometheus' text format."""
        label = f'model_name="{_escaped(model)}"'
        computed = self.prompt_tokens - self.exact_tokens - self.reused_tokens
        values = [
            ("vllm:request_success_total", label, self.requests),
            ("vllm:request_failure_total", label, self.failures),
            ("vllm:prompt_tokens_total", label, self.prompt_tokens),
            ("vllm:generation_tokens_total", label, self.generation_tokens),
            ("vllm:prefix_cache_queries_total", label, self.prompt_tokens),
            ("vllm:prefix_cache_hits_total", label, self.exact_tokens),
            ("vllm:external_prefix_cache_queries_total", label, self.prompt_tokens),
            ("vllm:external_prefix_cache_hits_total", label, self.reused_tokens),
            *(
                ("vllm:prompt_tokens_by_source_total", f'{label},source="{source}"', count)
                for source, count in (
                    ("local_compute", computed),
                    ("local_cache_hit", self.exact_tokens),
                    ("external_kv_transfer", self.reused_tokens),
                )
            ),
        ]
        lines: list[str] = []
        declared: set[str] = set()
        for name, labels, value in values:
            if name not in declared:
                declared.add(name)
                lines.append(f"# TYPE {name} counter")
            lines.append(f"{name}{{{labels}}} {float(value)}")
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
