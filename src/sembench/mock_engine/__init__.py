"""A mock inference engine: real HTTP, real caches, simulated compute, and optional lies.

It speaks the OpenAI protocol and SGLang's. It has an honest exact prefix cache and an
honest span finder over earlier prompts, sleeps for the compute it reports, and answers by
quoting its prompt. Its cheating modes (:class:`Cheat`) let tests show that SemBench's
gates catch them.
"""

from __future__ import annotations

from sembench.mock_engine.settings import Cheat, LogFormat, MockFault, MockSettings

__all__ = ["Cheat", "LogFormat", "MockFault", "MockSettings"]
