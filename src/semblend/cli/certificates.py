"""`semblend certificates`: list, show, verify and add quality certificates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from semblend.core.errors import SemBlendError, SettingsError
from semblend.core.settings import Settings
from semblend.planning.certificates import (
    Certificate,
    Examined,
    certificate_folders,
    depth_table,
    examined,
    file_name,
    users_folder,
)
from semblend.planning.signatures import make_key, sign_file, signature_of

certificates = typer.Typer(
    help="List, show, verify and add quality certificates.", no_args_is_help=True
)
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@certificates.command("list")
def list_certificates(as_json: _AsJson = False) -> None:
    """List every certificate engines can find here, in search order."""
    folders = _folders()
    found = list(examined(folders, key=_settings().certificate_key))
    if as_json:
        _print_json(
            {"folders": [str(folder) for folder in folders], "found": list(map(_row, found))}
        )
        return
    for folder in folders:
        mine = [each for each in found if folder in (each.path, each.path.parent)]
        typer.echo(f"{folder}: {len(mine) or 'none'}")
        for row in map(_row, mine):
            until = f"until {row['expires'][:10]}" if row["holds"] else f"not used: {row['detail']}"
            typer.echo(f"  {Path(row['path']).name}\n    {row['policy']}\n    {until}")


@certificates.command()
def show(
    name: Annotated[str, typer.Argument(help="A file, or part of a listed name.")],
    as_json: _AsJson = False,
) -> None:
    """Show a certificate: its policy, measured quality and cost, hardware and expiry."""
    paths = [Path(name)] if Path(name).is_file() else []
    found = list(examined(paths or _folders(), key=_settings().certificate_key))
    if not paths:
        found = [each for each in found if name in each.path.name]
    if not found:
        _fail(f"{name}: no such certificate; `semblend certificates list` lists them")
    for each in found:
        if each.certificate is None:
            _fail(f"{each.path}: {each.detail}")
        if as_json:
            _print_json(_row(each) | {"figures": dict(each.certificate.figures)})
        else:
            _show(each, each.certificate)


@certificates.command()
def verify(
    model: Annotated[
        str | None,
        typer.Argument(help="Model folder or hub name; default: every certificate found."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Number format the model is served in; default: any.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=0, max=36_500, help="Require validity for this many more days.")
    ] = 0,
) -> None:
    """Check whether reuse would be on. Exits with 1 if not, for hooks and probes."""
    now = datetime.now(UTC) + timedelta(days=days)
    found = list(examined(_folders(), dtype=dtype, now=now, key=_settings().certificate_key))
    if model is not None:
        fingerprint = _fingerprint(model)
        found = [e for e in found if e.certificate and e.certificate.fingerprint == fingerprint]
        holding = [e for e in found if e.objection is None]
        found = holding or found
        if not found:
            _fail(f"{model}: no certificate for these weights ({fingerprint})")
    elif not found:
        _fail("no certificates found")
    when = f"in {days} days: " if days else ""
    for each in found:
        said = f"does not hold: {when}{each.detail}" if each.objection else "holds"
        typer.echo(f"{each.path}: {said}")
    if any(each.objection for each in found):
        raise typer.Exit(1)


@certificates.command()
def add(
    files: Annotated[
        list[Path], typer.Argument(help="Certificates written by `semblend certify`.")
    ],
    to: Annotated[
        Path | None,
        typer.Option(help="Target folder; default: SEMBLEND_CERTIFICATE_DIR or the user's folder."),
    ] = None,
) -> None:
    """Check certificates and copy them, with their tables and reports, to where engines look."""
    told = _settings().certificate_dir
    folder = to or (Path(told).expanduser() if told and told != "none" else users_folder())
    checked = [(path, _certificate(path)) for path in files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, certificate in checked:
            goal = folder / file_name(certificate)
            # Copy the certificate last: it is only valid with its table beside it.
            for source, target in (
                (depth_table(path), depth_table(goal)),
                (path.with_suffix(".html"), goal.with_suffix(".html")),
                (signature_of(path), signature_of(goal)),
                (path, goal),
            ):
                if source.is_file() and source.resolve() != target.resolve():
                    shutil.copyfile(source, target)
            typer.echo(str(goal))
    except OSError as error:
        _fail(f"{folder}: {error}")


@certificates.command()
def key(
    file: Annotated[Path, typer.Argument(help="Where the private key goes; FILE.pub beside it.")],
) -> None:
    """Make an operator's ed25519 key; the public half goes to SEMBLEND_CERTIFICATE_KEY."""
    try:
        typer.echo(make_key(file))
    except (OSError, ValueError, ImportError) as error:
        _fail(str(error))


@certificates.command()
def sign(
    files: Annotated[list[Path], typer.Argument(help="Certificates that hold.")],
    key: Annotated[Path, typer.Option(help="The private key that `certificates key` made.")],
) -> None:
    """Put an operator's signature beside certificates: what was looked at, and by whom."""
    try:
        for path in files:
            found = list(examined([path]))
            if path.is_dir() or not found or found[0].objection is not None:
                _fail(f"{path}: {found[0].detail if found else 'no such file'}")
            typer.echo(str(sign_file(path, key)))
    except (OSError, ValueError, ImportError) as error:
        _fail(str(error))


def _settings() -> Settings:
    try:
        return Settings.from_env()
    except SettingsError as error:
        _fail(str(error))


def _folders() -> tuple[Path, ...]:
    return certificate_folders(_settings().certificate_dir)


def _certificate(path: Path) -> Certificate:
    """Read a certificate; fail unless it is valid."""
    found = list(examined([path], key=_settings().certificate_key))
    if not found or path.is_dir():
        _fail(f"{path}: no such file")
    (only,) = found
    if only.certificate is None or only.objection is not None:
        _fail(f"{path}: {only.detail}")
    return only.certificate


def _fingerprint(model: str) -> str:
    """Fingerprint the weights by content, as engines do. This reads every byte of them."""
    try:
        from semblend.integration.loaded_model.model_identity import (
            content_fingerprint,
            weights_folder,
        )

        folder = weights_folder(model)
        readable = folder is not None and (folder / "config.json").is_file()
        fingerprint = content_fingerprint(folder, None) if readable else None
    except (OSError, ValueError, ImportError, SemBlendError) as error:
        _fail(f"{model}: {error}")
    if fingerprint is None:
        _fail(f"{model}: its config.json and safetensors files are not on this machine")
    return fingerprint


def _row(each: Examined) -> dict[str, Any]:
    certificate = each.certificate
    return {
        "path": str(each.path),
        "model": "?" if certificate is None else certificate.model,
        "fingerprint": "?" if certificate is None else certificate.fingerprint,
        "dtype": "?" if certificate is None else certificate.dtype,
        "policy": "?" if certificate is None else certificate.policy,
        "measurement": "?" if certificate is None else certificate.measurement,
        "created": "?" if certificate is None else certificate.created,
        "expires": "?" if certificate is None else certificate.expires,
        "holds": each.objection is None,
        "detail": each.detail,
    }


def _show(each: Examined, certificate: Certificate) -> None:
    from semblend.quality.redteam.summaries import said_of

    page = each.path.with_suffix(".html")
    for name, value in (
        ("file", each.path),
        ("model", _model_said(certificate)),
        ("policy", certificate.policy),
        ("holds", each.detail or f"until {certificate.expires}"),
        ("measured", f"{certificate.created} on {certificate.versions.get('measured_on', '?')}"),
        ("engine", _engine_said(certificate)),
        ("sure", _sure_said(certificate)),
        ("attacked", said_of(certificate.figures.get("redteam"))),
        ("signed", "a signature is beside it" if signature_of(each.path).is_file() else "no"),
        ("report", page if page.is_file() else "none"),
    ):
        typer.echo(f"{name:9}{value}")
    typer.echo(
        f"\n{'workload':26}{'right':>8}{'cold':>8}{'same':>8}{'leaks':>8}{'KL':>8}{'price':>8}"
    )
    for row in certificate.figures.get("chosen", ()):
        # A continuation has no single right answer.
        answers = row.get("workload") != "continuation"
        typer.echo(
            f"{row.get('workload', '?'):26}"
            f"{_share(row, 'right') if answers else '–':>8}"
            f"{_share(row, 'cold_right') if answers else '–':>8}"
            f"{_share(row, 'top1'):>8}"
            f"{row.get('towards_donor', '?'):>8}"
            f"{row.get('kl', float('nan')):>8.0e}"
            f"{_share(row, 'recompute'):>8}"
        )
    typer.echo(
        "right, cold: share of right answers, with reuse and without; same: top next tokens that "
        "match\ncold; leaks: answers with the donor's fact; price: reusable tokens recomputed"
    )


def _model_said(certificate: Certificate) -> str:
    named = f" ({certificate.architecture})" if certificate.architecture else ""
    return f"{certificate.model}{named}, {certificate.dtype}"


def _engine_said(certificate: Certificate) -> str:
    """The engine it was measured in, and what was left out there."""
    engine = certificate.data.get("engine")
    if not isinstance(engine, Mapping):
        return "embedded"
    left = ", ".join(map(str, engine.get("left_out", ()))) or "nothing"
    return (
        f"{engine.get('name')} {engine.get('version')}, weights {engine.get('quantisation')}, "
        f"K/V {engine.get('kv_format')}, speculation {engine.get('speculation', 'none')}; "
        f"left out: {left}"
    )


def _sure_said(certificate: Certificate) -> str:
    """How likely a policy that breaks a limit would have passed, where that is known."""
    sure = certificate.figures.get("confidence")
    if not isinstance(sure, Mapping):
        return "as measured on a fixed number of items"
    return f"a broken limit passes with probability {sure.get('false_pass_at_most')} at most"


def _share(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return f"{value:.1%}" if isinstance(value, (int, float)) else "–"


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value))


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(
        f"semblend certificates: {message}",
        style="red",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    raise typer.Exit(1)
