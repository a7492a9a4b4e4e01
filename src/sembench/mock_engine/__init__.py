"""A mock inference engine: real HTTP, real caches, simulated compute, and optional lies.

It speaks the OpenAI protocol and SGLang's, keeps an honest exact prefix cache and
an honest span finder over the token ids of earlier prompts, sleeps for the
compute it says it did, and answers by quoting its prompt. Its cheating modes
(:class:`Cheat`) exist so that the gates of SemBench can be shown to catch them.
"""

from __future__ import annotations

from sembench.mock_engine.settings import Cheat, Fault, LogFormat, MockSettings

__all__ = ["Cheat", "Fault", "LogFormat", "MockSettings"]
