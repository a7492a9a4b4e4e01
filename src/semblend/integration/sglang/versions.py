"""Which SGLang this adapter was written for; another version is refused.

SGLang's cache interfaces change between patch releases: 0.5.22 removed what 0.5.20 had. `contract`
asks the installed one in detail.
"""

from __future__ import annotations

from semblend.integration.engine_versions import READ, RUN, EngineVersions

VERSIONS = EngineVersions(
    engine="SGLang",
    packages=("sglang",),
    known={"0.5.22": READ, "0.5.23": RUN},
    # A post release may differ in any file: only plain releases are known, whoever built them.
    release_of=lambda version: version.partition("+")[0],
)
