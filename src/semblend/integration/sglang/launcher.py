"""`semblend-sglang`: starts SGLang's server with everything SemBlend needs set.

    semblend-sglang --model-path Qwen/Qwen2.5-7B-Instruct --port 8000
    semblend-sglang --semblend-mode segmented_experimental --model-path … --port 8000

Flags that begin with --semblend are taken here; every other flag is SGLang's and is
passed on as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence

from semblend.core.errors import MissingExtraError, SemBlendError, SettingsError
from semblend.integration.option_values import given_object
from semblend.integration.sglang.modes import Mode
from semblend.integration.sglang.options import VARIABLE, BackendOptions
from semblend.integration.sglang.plugin import BACKEND
from semblend.integration.sglang.versions import installed

_FLAG = "--radix-cache-backend"


def prepare(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], str]:
    """SGLang's own arguments, and the value of SEMBLEND_SGLANG_CONFIG.

    Raises
    ------
    SettingsError
        If a SemBlend flag is wrong, or another radix-cache backend is asked for.
    """
    parser = _parser()
    ours, theirs = parser.parse_known_args(list(argv))
    values = (
        given_object(ours.semblend_config, source="--semblend-config")
        if ours.semblend_config
        else BackendOptions.from_env(environ).given()
    )
    if ours.semblend_mode is not None:
        values["mode"] = ours.semblend_mode
    if ours.semblend_audit_path is not None:
        values["audit_path"] = ours.semblend_audit_path
    BackendOptions.from_mapping(values)
    return _with_backend(theirs), json.dumps(values)


def run() -> None:
    """Entry point of the command."""
    try:
        verdict = installed()
        if verdict is None:
            raise MissingExtraError(package="sglang", extra="sglang", purpose="semblend-sglang")
        argv, config = prepare(sys.argv[1:], os.environ)
    except SemBlendError as error:
        sys.stderr.write(f"semblend-sglang: {error}\n")
        raise SystemExit(2) from error
    os.environ[VARIABLE] = config
    _serve(argv)


def _serve(argv: list[str]) -> None:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    from semblend.integration.sglang.radix_patcher import patch_radix_cache

    try:
        patch_radix_cache()
    except SemBlendError as error:
        sys.stderr.write(f"semblend-sglang: {error}\n")
        raise SystemExit(2) from error
    load_plugins()
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="semblend-sglang",
        description="Start SGLang with SemBlend. All other flags are SGLang's own.",
        epilog="Flags of the server itself: sglang serve --help",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--semblend-mode", choices=[mode.value for mode in Mode], help="what may be loaded"
    )
    parser.add_argument(
        "--semblend-config", help="a JSON object, or a file that holds one; see docs/sglang.md"
    )
    parser.add_argument("--semblend-audit-path", help="file the audit stream is appended to")
    return parser


def _with_backend(argv: list[str]) -> list[str]:
    for index, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name != _FLAG:
            continue
        chosen = value if equals else (argv[index + 1] if index + 1 < len(argv) else "")
        if chosen != BACKEND:
            raise SettingsError(f"{_FLAG} {chosen}: semblend-sglang starts backend {BACKEND}")
        return argv
    return [*argv, _FLAG, BACKEND]
