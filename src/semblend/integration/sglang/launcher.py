"""`semblend-sglang`: starts SGLang's server with everything SemBlend needs set.

    semblend-sglang --model-path Qwen/Qwen2.5-7B-Instruct --port 8000
    semblend-sglang --semblend-mode segmented_experimental --model-path … --port 8000

Flags that begin with --semblend are taken here; every other flag is SGLang's and is
passed on as it is.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence

from semblend.core.errors import MissingExtraError, SettingsError
from semblend.integration.launching import flags_of, given_flag, stopping, values_of
from semblend.integration.sglang.options import VARIABLE, BackendOptions
from semblend.integration.sglang.plugin import BACKEND
from semblend.integration.sglang.versions import VERSIONS

_PROGRAM = "semblend-sglang"
_FLAG = "--radix-cache-backend"
_FLAGS = flags_of(
    BackendOptions, _PROGRAM, server="SGLang", help_of="sglang serve --help", page="docs/sglang.md"
)


def prepare(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], str]:
    """SGLang's own arguments, and the value of SEMBLEND_SGLANG_CONFIG.

    Raises
    ------
    SettingsError
        If a SemBlend flag is wrong, or another radix-cache backend is asked for.
    """
    ours, theirs = _FLAGS.parse_known_args(list(argv))
    values = values_of(BackendOptions, ours, environ)
    return _with_backend(theirs), json.dumps(values)


def run() -> None:
    """Entry point of the command."""
    with stopping(_PROGRAM):
        if VERSIONS.installed() is None:
            raise MissingExtraError(package="sglang", extra="sglang", purpose=_PROGRAM)
        argv, config = prepare(sys.argv[1:], os.environ)
    os.environ[VARIABLE] = config
    _serve(argv)


def _serve(argv: list[str]) -> None:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    from semblend.integration.sglang.radix_patcher import patch_radix_cache

    with stopping(_PROGRAM):
        chosen = patch_radix_cache()
    load_plugins()
    argv = argv if chosen else without_backend(argv)
    _name_worker()
    try:
        run_server(prepare_server_args(argv))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _name_worker() -> None:
    """Let answers say which worker of a fleet they are from."""
    from semblend.integration.worker_header import VARIABLE, WorkerHeader

    if os.environ.get(VARIABLE):
        from sglang.srt.entrypoints.http_server import app

        app.add_middleware(WorkerHeader)


def without_backend(argv: list[str]) -> list[str]:
    """SGLang's arguments for a version that cannot be given our backend: the flag is refused."""
    flag = given_flag(argv, (_FLAG,))
    return argv if flag is None else [*flag.before, *flag.behind]


def _with_backend(argv: list[str]) -> list[str]:
    flag = given_flag(argv, (_FLAG,))
    if flag is None:
        return [*argv, _FLAG, BACKEND]
    if flag.value != BACKEND:
        chosen = flag.value or ""
        raise SettingsError(f"{_FLAG} {chosen}: semblend-sglang starts backend {BACKEND}")
    return argv
