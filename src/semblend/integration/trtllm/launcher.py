"""`semblend-trtllm`: starts `trtllm-serve` with everything SemBlend needs set.

    semblend-trtllm Qwen/Qwen2.5-7B-Instruct --port 8000
    semblend-trtllm --semblend-mode segmented_experimental --semblend-ladder-socket /run/ladder \\
        Qwen/Qwen2.5-7B-Instruct --port 8000

Flags that begin with --semblend are taken here; every other argument is trtllm-serve's and is
passed on as it is. The connector is named in an options file, which trtllm-serve merges into
its own arguments; one that is given is kept, with the connector added. Where the installed
version lets one choose, it also asks for the K/V cache manager this adapter knows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semblend.core.errors import MissingExtraError, SettingsError
from semblend.integration.launching import flags_of, given_flag, stopping, values_of
from semblend.integration.option_values import given_yaml
from semblend.integration.trtllm.options import VARIABLE, ConnectorOptions, forward
from semblend.integration.trtllm.support import MANAGER_SETTING

_PROGRAM = "semblend-trtllm"
MODULE = "semblend.integration.trtllm.connector"
SCHEDULER = "SemBlendKvConnectorScheduler"
WORKER = "SemBlendKvConnectorWorker"
CONNECTOR = {
    "connector_module": MODULE,
    "connector_scheduler_class": SCHEDULER,
    "connector_worker_class": WORKER,
}
_OPTION_FLAGS = ("--extra_llm_api_options", "--config")
"""What trtllm-serve calls its options file, older name first."""


def connector_config() -> Any:
    """The configuration object for `LLM(kv_connector_config=…)`; needs TensorRT-LLM.

    SEMBLEND_* variables as they are now reach the processes the LLM starts.
    """
    forward(os.environ)
    from tensorrt_llm.llmapi.llm_args import KvCacheConnectorConfig

    return KvCacheConnectorConfig(**CONNECTOR)


def prepare(
    argv: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    *,
    choose_manager: bool = False,
) -> tuple[list[str], str, dict[str, Any]]:
    """trtllm-serve's arguments, the value of SEMBLEND_TRTLLM_CONFIG, and the options file.

    The options file is to be written to `folder`/options.json: JSON is YAML. With
    `choose_manager` it also says which K/V cache manager, unless it did.

    Raises
    ------
    SettingsError
        If a SemBlend flag is wrong, or another connector is asked for.
    """
    ours, theirs = _parser().parse_known_args(list(argv))
    values = values_of(ConnectorOptions, ours, environ)
    arguments, options = _with_connector(theirs, folder)
    if choose_manager:
        options = _with_manager(options)
    return arguments, json.dumps(values), options


def chooses_manager(package: Path) -> bool:
    """Whether TensorRT-LLM in this folder has a setting for the K/V cache manager.

    Read from its source: older versions refuse keys they do not know, and importing all of
    TensorRT-LLM to ask would take longer than the rest of this command.
    """
    try:
        return MANAGER_SETTING in (package / "llmapi" / "llm_args.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def run() -> None:
    """Entry point of the command."""
    with stopping(_PROGRAM):
        command = shutil.which("trtllm-serve")
        found = importlib.util.find_spec("tensorrt_llm")
        if command is None or found is None:
            raise MissingExtraError(package="tensorrt_llm", extra="trtllm", purpose=_PROGRAM)
        folder = Path(tempfile.mkdtemp(prefix=f"{_PROGRAM}-"))
        choose = any(
            chooses_manager(Path(place)) for place in found.submodule_search_locations or ()
        )
        argv, config, options = prepare(sys.argv[1:], os.environ, folder, choose_manager=choose)
    (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
    # In its place: signals and the exit status are the server's own.
    environ = {**os.environ, VARIABLE: config}
    forward(environ)
    os.execve(command, [command, *argv], environ)


def _parser() -> argparse.ArgumentParser:
    flags = flags_of(
        ConnectorOptions,
        _PROGRAM,
        server="trtllm-serve",
        help_of="trtllm-serve --help",
        page="docs/trtllm.md",
    )
    flags.add_argument(
        "--semblend-ladder-socket", help="socket on which ladder clients ask for plans"
    )
    return flags


def _with_connector(argv: list[str], folder: Path) -> tuple[list[str], dict[str, Any]]:
    """The arguments with an options file that names the connector, and what is in it."""
    path = str(folder / "options.json")
    flag = given_flag(argv, _OPTION_FLAGS)
    if flag is None:
        return [*argv, _OPTION_FLAGS[0], path], {"kv_connector_config": CONNECTOR}
    if flag.value is None:
        raise SettingsError(f"{flag.name}: a file expected")
    options = given_yaml(flag.value, source="options file", extra="trtllm")
    named = options.get("kv_connector_config")
    if named is not None and named != CONNECTOR:
        raise SettingsError(f"{flag.name}: kv_connector_config names another connector: {named}")
    arguments = [*flag.before, flag.name, path, *flag.behind]
    return arguments, {**options, "kv_connector_config": CONNECTOR}


def _with_manager(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the older manager asked for; what they say themselves stands."""
    cache = options.get("kv_cache_config") or {}
    if not isinstance(cache, dict):
        return options  # not for us to judge
    return {**options, "kv_cache_config": {MANAGER_SETTING: False, **cache}}
