"""Plan a reuse with nothing but the light core: python examples/plan.py"""

from semblend import Namespace, SemBlendPipeline, Settings

document = "The harbour of Vellmar was built in three stages. " * 30
namespace = Namespace.of(model="example", tenant="acme")


def words(text: str) -> list[int]:
    """Any tokenizer will do; this one numbers words."""
    return [hash(word) % 50_000 for word in text.split()]


with SemBlendPipeline(Settings(embedder="none", allow_uncertified=True)) as pipeline:
    pipeline.register_donor("first", words("Answer from the text. " + document), namespace)
    plan = pipeline.plan(words("Write a short summary for sailors: " + document + "Go."), namespace)

print(f"{plan.prompt_tokens} tokens, {plan.reused_tokens} reused, policy {plan.policy}")
for span in plan.spans:
    print(f"  target {span.target_start}..{span.target_end} from {span.donor_id}, {span.kind}")
for hole in plan.holes:
    print(f"  computed {hole.start}..{hole.end}")
print(f"  tail of {plan.tail_tokens}; estimated {plan.cost.speedup:.1f}x faster")
