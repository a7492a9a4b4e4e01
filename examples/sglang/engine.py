"""SemBlend in a program that creates its own SGLang engine.

SEMBLEND_SGLANG_CONFIG='{"mode": "segmented_experimental"}' \
    python examples/sglang/engine.py MODEL document.txt
"""

import sys

from semblend.integration.sglang.radix_patcher import patch_radix_cache


def main() -> None:
    model, path = sys.argv[1:3]
    with open(path, encoding="utf-8") as file:
        document = file.read()
    patch_radix_cache()  # raises, with the reason, if this SGLang is not supported
    import sglang

    engine = sglang.Engine(model_path=model)
    for instruction in ("Summarise the text.", "You are an editor. Name the weakest paragraph."):
        answer = engine.generate(f"{instruction}\n\n{document}\n", {"max_new_tokens": 32})
        print(answer["meta_info"]["semblend"][0]["reused_tokens"], "tokens reused")
        print(answer["text"].strip())
    engine.shutdown()


if __name__ == "__main__":
    main()
