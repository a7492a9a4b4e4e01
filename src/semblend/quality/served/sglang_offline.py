"""SGLang's offline engine with our radix-cache backend, asked by the requests its users send.

Its scheduler runs in a process of its own. Nothing there hands out a donor's K/V, so no table of
depth drift is measured; and its tree is where donors live, so it cannot be emptied between
policies: each policy has donors under a salt of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from semblend import __version__
from semblend.core.errors import MissingExtraError, SettingsError
from semblend.quality.seam import MeasuredFacts
from semblend.quality.served.asking import TOP, ServedReply, ServedRequest
from semblend.quality.served.comparing import METHOD

BATCH = 4
SETTLE_S = 0.3
"""Fingerprints are taken on a thread beside the scheduler, which tells nobody when."""
MIN_PROMPT_TOKENS = 64
CONFIG = "SEMBLEND_SGLANG_CONFIG"
LEFT_OUT = (
    "the table of depth drift, which SGLang cannot measure: policies that shift depths only with "
    "one that another engine measured",
    "the share of the price that a policy's probe computes",
)


class SglangOffline:
    """One `sglang.Engine`, in the mode in which requests name policies."""

    forgets_prefixes = False
    batch = BATCH

    def __init__(
        self,
        model: str,
        *,
        fingerprint: str,
        asked_at_load: Callable[[Any, Any], Mapping[str, str]],
        prepare: Callable[[], str],
        dtype: str = "auto",
        policy: str = "none",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Start it.

        Parameters
        ----------
        asked_at_load
            Tells from SGLang's ModelConfig and ServerArgs what the backend will compare with the
            certificate.
        prepare
            Registers our backend; returns its name, or "" where this SGLang cannot be given one.
        policy
            Of requests that name none. One that shifts depths has the engine read the table.
        options
            More arguments of `sglang.Engine`: what the model will be served with.

        Raises
        ------
        SettingsError
            If this SGLang takes no backend.
        """
        os.environ[CONFIG] = json.dumps(
            {
                "mode": "segmented_experimental",
                "recompute_policy": policy,
                "min_prompt_tokens": MIN_PROMPT_TOKENS,
            }
        )
        try:
            sglang = import_module("sglang")
        except ImportError as error:
            raise MissingExtraError(
                package="sglang", extra="sglang", purpose="measuring inside SGLang"
            ) from error
        backend = prepare()
        if not backend:
            raise SettingsError("--engine sglang: this SGLang takes no radix-cache backend")
        self._engine: Any = sglang.Engine(
            model_path=model, dtype=dtype, radix_cache_backend=backend, **(options or {})
        )
        manager = self._engine.tokenizer_manager
        self.tokenizer: Any = manager.tokenizer
        self.most_tokens = int(manager.model_config.context_len)
        asked = asked_at_load(manager.model_config, manager.server_args)
        self.facts = _facts(manager, model, fingerprint, sglang.__version__, asked)

    def ask(self, questions: Sequence[ServedRequest]) -> list[ServedReply]:
        """All in one call; SGLang batches them as it does those of users."""
        given = self._engine.generate(
            input_ids=[question.tokens.tolist() for question in questions],
            sampling_params=[
                {
                    "max_new_tokens": question.most,
                    "temperature": 0.0,
                    "custom_params": {"semblend": _hints(question)},
                }
                for question in questions
            ],
            return_logprob=True,
            top_logprobs_num=TOP,
            cache_salt=[question.salt for question in questions],
        )
        return [_reply(one) for one in given]

    def settle(self) -> None:
        """Wait until prompts that were kept can be found."""
        time.sleep(SETTLE_S)

    def forget_prefixes(self) -> None:
        """Not here: donors live in the tree."""

    def close(self) -> None:
        """End its processes."""
        self._engine.shutdown()


def _hints(question: ServedRequest) -> dict[str, Any]:
    """As `custom_params` have them: SGLang's donors are kept in its tree, not captured."""
    said: dict[str, Any] = {"reuse": question.reuse, "donate": question.capture}
    return said if question.policy is None else {**said, "policy": question.policy}


def _reply(given: Mapping[str, Any]) -> ServedReply:
    about = given["meta_info"]
    said = about.get("semblend") or [{}]
    return ServedReply(
        tokens=tuple(str(token) for _, token, _ in about["output_token_logprobs"]),
        text=str(given["text"]),
        top=tuple(
            {str(token): float(value) for value, token, _ in place}
            for place in about["output_top_logprobs"]
        ),
        said=said[0],
    )


def _facts(
    manager: Any, model: str, fingerprint: str, version: str, asked: Mapping[str, str]
) -> MeasuredFacts:
    torch = import_module("torch")
    config, device = manager.model_config, str(manager.server_args.device)
    dtype = str(config.dtype).removeprefix("torch.")
    return MeasuredFacts(
        engine="sglang",
        version=version,
        model=model,
        fingerprint=fingerprint,
        dtype=dtype,
        architecture=str((config.hf_config.architectures or ["not told"])[0]),
        quantisation=str(config.quantization or "none"),
        kv_format=dtype,
        speculation=asked["speculation"],
        asked_at_load=asked,
        hardware=torch.cuda.get_device_name() if device == "cuda" else device,
        versions={"torch": torch.__version__, "backend": __version__},
        method=METHOD,
        left_out=LEFT_OUT,
    )
