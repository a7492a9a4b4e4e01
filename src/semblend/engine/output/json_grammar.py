"""Answers that follow a JSON schema: the allowed next tokens, by llguidance."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch

from semblend.core.errors import RequestFieldError

LONGEST_SCHEMA = 65_536
"""Characters. A schema is compiled before its request is queued."""


class Grammars:
    """Makes grammars for one model's tokenizer, which is read on first use."""

    def __init__(self, tokenizer: Any, *, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._hugging_face = tokenizer
        self._vocab_size = vocab_size
        self._eos = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._read: Any = None

    def of_schema(self, schema: str) -> Grammar:
        """The grammar of a JSON schema.

        Raises
        ------
        RequestFieldError
            If llguidance is not installed or does not support the schema.
        """
        try:
            from llguidance import LLMatcher
        except ImportError as error:
            raise RequestFieldError(
                "response_format",
                "this server does not support JSON schemas: it was installed without the json "
                "extra (llguidance)",
            ) from error
        if len(schema) > LONGEST_SCHEMA:
            raise RequestFieldError(
                "response_format", f"expected a schema of at most {LONGEST_SCHEMA} characters"
            )
        tokenizer = self._tokenizer()
        try:
            # Allow one way to write each value, because small models add too much white space.
            grammar = LLMatcher.grammar_from_json_schema(
                schema, defaults={"whitespace_flexible": False}
            )
            problem = LLMatcher.validate_grammar(grammar, tokenizer)
        except Exception as error:  # the package raises several kinds, all about the schema
            problem = str(error)
        if problem:
            # The message may quote the schema, which may quote a prompt, so keep only the first
            # line.
            raise RequestFieldError("response_format", problem.splitlines()[0][:200])
        return Grammar(LLMatcher(tokenizer, grammar), self._vocab_size)

    def _tokenizer(self) -> Any:
        from llguidance.hf import from_tokenizer

        with self._lock:
            if self._read is None:
                self._read = from_tokenizer(
                    self._hugging_face, n_vocab=self._vocab_size, eos_token=self._eos or None
                )
            return self._read


class Grammar:
    """One answer's position in its grammar. Used by the worker thread only."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> torch.Tensor:
        """The tokens that may come next, [vocabulary], bool.

        Raises
        ------
        RequestFieldError
            If there are none, because the grammar cannot continue.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        mask = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(np.bool_)
        if not mask.any():
            raise RequestFieldError("response_format", "no token fits the schema here")
        return torch.from_numpy(mask)

    def take(self, token_id: int) -> bool:
        """Advance by this token. Returns whether the answer is complete."""
        self._matcher.consume_token(token_id)
        return bool(self._matcher.is_stopped())
